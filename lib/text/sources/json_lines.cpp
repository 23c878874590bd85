// JSON Lines; see documents.hpp.
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "lib/base/error.hpp"
#include "lib/base/json_text.hpp"
#include "lib/base/python_json.hpp"
#include "lib/text/sources/documents.hpp"
#include "lib/text/sources/text_stream.hpp"

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

/// Shortens "[json.exception.parse_error.101] parse error at line 1, column 9: syntax error while ...": drops the first
/// part, whose line number counts inside the text.
std::string shorten(std::string_view error) {
  const auto at = error.find("column ");
  return std::string(at == std::string_view::npos ? error : error.substr(at));
}

class JsonLines : public Documents {
 public:
  JsonLines(const std::filesystem::path& file, std::string field) : stream_(file), field_(std::move(field)) {}

  bool next(std::string& text) override {
    do {
      if (!stream_.next_line(line_, line_number_ + 1)) return false;
      ++line_number_;
    } while (line_.find_first_not_of(" \t\r") == std::string::npos);
    FieldReader reader(field_, text, others_);
    if (nlohmann::json::sax_parse(line_, &reader)) {
      check_found(reader);
    } else {
      read_as_python(reader, text);
    }
    return true;
  }
  std::string where() const override { return stream_.path().string() + ": line " + std::to_string(line_number_); }
  std::int64_t bytes_read() const override { return stream_.bytes_read(); }
  std::vector<std::string> unread() const override { return {others_.begin(), others_.end()}; }

 private:
  [[noreturn]] void fail(const FieldReader& reader) const {
    if (!reader.problem().empty()) throw FormatError(where() + ": " + reader.problem());
    throw FormatError(where() + ": is no JSON, " + shorten(reader.syntax_error()) +
                      "; JSON Lines has one whole object on every line");
  }

  void check_found(const FieldReader& reader) const {
    if (reader.found()) return;
    throw FormatError(where() + ": has no key '" + field_ + "', " +
                      (reader.keys().empty() ? "it is empty" : "only " + reader.keys()) +
                      "; --data-field names the one to read (of fsdp-download tokens: --field)");
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

  detail::TextStream stream_;
  std::string field_;
  std::set<std::string> others_;  ///< keys beside it
  std::string line_;
  std::int64_t line_number_ = 0;
};

/// Returns whole lines, which the encoder parses.
class JsonRecords : public Documents {
 public:
  explicit JsonRecords(const std::filesystem::path& file) : stream_(file) {}

  bool next(std::string& text) override {
    do {
      if (!stream_.next_line(text, line_number_ + 1)) return false;
      ++line_number_;
    } while (text.find_first_not_of(" \t\r") == std::string::npos);
    return true;
  }
  std::string where() const override { return stream_.path().string() + ": line " + std::to_string(line_number_); }
  std::int64_t bytes_read() const override { return stream_.bytes_read(); }

 private:
  detail::TextStream stream_;
  std::int64_t line_number_ = 0;
};

}  // namespace

std::unique_ptr<Documents> detail::open_json_records(const std::filesystem::path& file) {
  return std::make_unique<JsonRecords>(file);
}

std::vector<std::string> detail::first_json_keys(const std::filesystem::path& file) {
  JsonRecords records(file);
  std::string line;
  std::vector<std::string> keys;
  if (!records.next(line)) return keys;
  // Repeated names are kept: the encoder refuses them where the name counts.
  auto json = parse_data_or_discard(line, records.where());
  if (json.is_discarded()) json = parse_data_or_discard(PythonJson(line).plain_text(), records.where());
  if (!json.is_object()) return keys;
  for (const auto& member : json.items()) keys.push_back(member.key());
  return keys;
}

std::unique_ptr<Documents> detail::open_json_lines(const std::filesystem::path& file, const std::string& field) {
  return std::make_unique<JsonLines>(file, field);
}

}  // namespace fsdp
