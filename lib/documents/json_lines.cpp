// JSON Lines; see documents.hpp.
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "lib/base/text/json_text.hpp"
#include "lib/base/text/python_json.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/documents/documents.hpp"
#include "lib/documents/json_samples.hpp"

namespace fsdp {
namespace {

/// Extracts one member of an object from a line and skips everything else.
class FieldReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  /// \param others  gets the other keys
  FieldReader(const std::string& field, std::string& text, std::set<std::string>& others)
      : field_(field), text_(text), others_(others) {
    text_.clear();
  }

  bool found() const { return found_; }
  /// Problem of a line that is valid JSON; empty if there is none.
  const std::string& problem() const { return problem_; }
  const std::string& syntax_error() const { return syntax_error_; }
  const std::string& keys() const { return keys_; }

  bool null() override {
    if (in_list()) return refuse("a null element");
    return scalar("null", true);
  }
  bool boolean(bool) override { return scalar("a truth value", false); }
  bool number_integer(number_integer_t) override { return scalar("a number", false); }
  bool number_unsigned(number_unsigned_t) override { return scalar("a number", false); }
  bool number_float(number_float_t, const string_t&) override { return scalar("a number", false); }
  bool binary(binary_t&) override { return scalar("binary data", false); }
  bool string(string_t& value) override {
    if (depth_ == 0) return scalar("a string", false);
    if (!wanted_) return true;
    if (depth_ == 1) {
      text_ = std::move(value);
    } else {
      if (elements_++ > 0) text_ += ' ';
      text_ += value;
    }
    return true;
  }
  bool start_object(std::size_t) override {
    if (depth_ > 0 && wanted_) return refuse(in_list() ? "an object as an element" : "an object");
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ == 0) return scalar("a list", false);
    if (wanted_ && depth_ > 1) return refuse("a list of lists");
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ > 1) return true;
    wanted_ = name == field_;
    if (wanted_) {
      // The last value of a repeated key counts.
      found_ = true;
      text_.clear();
      elements_ = 0;
      return true;
    }
    others_.insert(name);
    if (keys_.size() < 200) {
      keys_ += (keys_.empty() ? "'" : ", '") + name + "'";
    }
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& error) override {
    syntax_error_ = error.what();
    return false;
  }

 private:
  bool in_list() const { return wanted_ && depth_ > 1; }
  bool refuse(const std::string& what) {
    problem_ = "'" + field_ + "' holds " + what + ", expected a string or a list of strings";
    return false;
  }
  bool scalar(const std::string& what, bool allowed) {
    if (depth_ == 0) {
      problem_ = "holds " + what + ", expected an object with the key '" + field_ + "'";
      return false;
    }
    if (!wanted_ || allowed) return true;
    return refuse(in_list() ? what + " as an element" : what);
  }

  const std::string& field_;
  std::string& text_;
  std::set<std::string>& others_;
  int depth_ = 0;        ///< 1 at the members of the line
  bool wanted_ = false;  ///< inside the member
  bool found_ = false;
  std::size_t elements_ = 0;
  std::string problem_, syntax_error_, keys_;
};

class JsonLines : public Documents {
 public:
  JsonLines(const DataPiece& piece, std::string field) : samples_(piece), field_(std::move(field)) {}

  bool next(std::string& text) override {
    if (!samples_.next(line_)) return false;
    if (first_.empty()) first_ = place();
    FieldReader reader(field_, text, others_);
    if (nlohmann::json::sax_parse(line_, &reader)) {
      check_found(reader);
    } else {
      read_as_python(reader, text);
    }
    return true;
  }
  std::string where() const override { return samples_.where(); }
  std::int64_t bytes_read() const override { return samples_.bytes_read(); }
  std::vector<std::string> unread() const override { return {others_.begin(), others_.end()}; }

 private:
  std::string place() const { return detail::place_in_file(samples_.where()); }

  [[noreturn]] void fail(const FieldReader& reader) const {
    if (!reader.problem().empty()) throw FormatError(where() + ": " + reader.problem());
    throw FormatError(where() + ": " + detail::no_json(line_, reader.syntax_error()));
  }

  void check_found(const FieldReader& reader) {
    if (reader.found()) return;
    const auto here = where();  // is_single() reads on
    const auto form = form_of_keys(detail::keys_of(line_, where()));
    const auto first = samples_.is_from_start() ? first_ : detail::first_json_place(samples_.path());
    if (field_ == "text" && form && *form != DataForm::text && !(samples_.is_from_start() && first == place()))
      throw FormatError(detail::other_form(where(), *form, first, DataForm::text));
    if (samples_.is_single()) {
      if (const auto problem = detail::list_in_object(samples_.path()); !problem.empty()) throw FormatError(problem);
    }
    throw FormatError(
        here + ": has no key '" + field_ + "', " + (reader.keys().empty() ? "it is empty" : "only " + reader.keys()),
        Remedy::data_field);
  }

  /// Reads a line that is not JSON again as Python's extended JSON.
  void read_as_python(const FieldReader& failed, std::string& text) {
    if (!failed.problem().empty()) fail(failed);
    const PythonJson python(line_);
    if (python.is_plain()) fail(failed);
    FieldReader reader(field_, text, others_);
    if (!nlohmann::json::sax_parse(python.plain_text(), &reader))
      reader.problem().empty() ? fail(failed) : fail(reader);
    check_found(reader);
    if (python.holds_half(std::string_view(text)))
      throw FormatError(where() + ": '" + field_ + "' holds " + PythonJson::kHalfProblem);
  }

  detail::JsonSamples samples_;
  std::string field_;
  std::set<std::string> others_;  ///< keys beside it
  std::string line_;              ///< the sample
  std::string first_;             ///< place of the first sample
};

/// Returns whole samples, which the encoder parses.
class JsonRecords : public Documents {
 public:
  explicit JsonRecords(const DataPiece& piece) : samples_(piece) {}

  bool next(std::string& text) override { return samples_.next(text); }
  std::string where() const override { return samples_.where(); }
  std::int64_t bytes_read() const override { return samples_.bytes_read(); }

 private:
  detail::JsonSamples samples_;
};

}  // namespace

std::unique_ptr<Documents> detail::open_json_records(const DataPiece& piece) {
  return std::make_unique<JsonRecords>(piece);
}

std::vector<std::string> detail::first_json_keys(const std::filesystem::path& file) {
  JsonRecords records(file);
  std::string sample;
  return records.next(sample) ? keys_of(sample, records.where()) : std::vector<std::string>();
}

std::string detail::first_json_place(const std::filesystem::path& file) {
  JsonRecords records(file);
  std::string sample;
  return records.next(sample) ? place_in_file(records.where()) : "";
}

std::vector<std::string> detail::keys_of(const std::string& sample, const std::string& where) {
  std::vector<std::string> keys;
  // Repeated names are kept: the encoder refuses them where the name counts.
  auto json = parse_data_or_discard(sample, where);
  if (json.is_discarded()) json = parse_data_or_discard(PythonJson(sample).plain_text(), where);
  if (!json.is_object()) return keys;
  for (const auto& member : json.items()) keys.push_back(member.key());
  return keys;
}

std::string detail::no_json(std::string_view sample, std::string_view error) {
  // "[json.exception.parse_error.101] parse error at line 1, column 9: syntax error while ..."
  const auto at = error.find(sample.find('\n') == sample.npos ? "column " : "line ");
  return "is no JSON, " + std::string(at == error.npos ? error : error.substr(at)) +
         "; JSON Lines has one whole object on every line, and a list begins with '['";
}

std::string detail::place_in_file(const std::string& where) {
  const auto at = where.rfind(": ");
  return at == where.npos ? where : where.substr(at + 2);
}

std::string detail::other_form(const std::string& where, DataForm form, const std::string& first, DataForm of_first) {
  return where + " is " + name_with_article(form) + ", " + first + " " + name_with_article(of_first) +
         ": one form per file";
}

std::unique_ptr<Documents> detail::open_json_lines(const DataPiece& piece, const std::string& field) {
  return std::make_unique<JsonLines>(piece, field);
}

}  // namespace fsdp
