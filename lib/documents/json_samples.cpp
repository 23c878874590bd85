#include "lib/documents/json_samples.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "lib/base/types/error.hpp"

namespace fsdp::detail {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

/// Finds the first member of an object that is a list of objects.
class ListFinder : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool found() const { return found_; }
  const std::string& key() const { return key_; }

  bool null() override { return scalar(); }
  bool boolean(bool) override { return scalar(); }
  bool number_integer(number_integer_t) override { return scalar(); }
  bool number_unsigned(number_unsigned_t) override { return scalar(); }
  bool number_float(number_float_t, const string_t&) override { return scalar(); }
  bool string(string_t&) override { return scalar(); }
  bool binary(binary_t&) override { return scalar(); }
  bool key(string_t& name) override {
    if (depth_ == 1) key_ = name;
    return true;
  }
  bool start_object(std::size_t) override {
    found_ = begins_list_;
    ++depth_;
    return !found_;
  }
  bool end_object() override { return ends(); }
  bool start_array(std::size_t) override {
    if (depth_ == 0) return false;
    begins_list_ = depth_ == 1;
    ++depth_;
    return true;
  }
  bool end_array() override { return ends(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override { return false; }

 private:
  bool scalar() {
    begins_list_ = false;
    return depth_ > 0;
  }
  bool ends() {
    begins_list_ = false;
    return --depth_ > 0;
  }

  std::string key_;
  int depth_ = 0;
  bool begins_list_ = false, found_ = false;
};

/// True if the line begins an object that ends on a later line.
bool leaves_object_open(std::string_view line) {
  const auto begin = line.find_first_not_of(kBlanks);
  if (begin == line.npos || line[begin] != '{') return false;
  std::int64_t depth = 0;
  bool in_string = false;
  for (std::size_t i = begin; i < line.size(); ++i) {
    const char c = line[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return depth > 0 && !in_string;
}

}  // namespace

JsonSamples::JsonSamples(const DataPiece& piece) : stream_(piece), is_from_start_(piece.begin == 0) {
  at_ = static_cast<std::int64_t>(stream_.offset());
  is_list_ = piece.begin == 0 && stream_.begins_with('[');
  while (is_list_ && get() != '[') {
  }
}

int JsonSamples::get() {
  const int byte = stream_.get();
  if (byte >= 0) ++at_;
  return byte;
}

int JsonSamples::skip_blanks() {
  while (stream_.peek() >= 0 && kBlanks.find(static_cast<char>(stream_.peek())) != kBlanks.npos) get();
  return stream_.peek();
}

void JsonSamples::fail(const std::string& problem) const {
  throw FormatError(fmt::format("{}: byte {}: {}", stream_.path().string(), at_, problem));
}

void JsonSamples::add(std::string& text, int byte) const {
  if (text.size() == kMostText_bytes) throw FormatError(where() + " is longer than 1 GiB; is this a list of samples?");
  text += static_cast<char>(byte);
}

/// Reads up to the comma or bracket after the element, which stays.
void JsonSamples::read_element(std::string& text) {
  text.clear();
  std::int64_t depth = 0;
  bool in_string = false;
  for (int byte = stream_.peek(); byte >= 0; byte = stream_.peek()) {
    if (in_string) {
      if (byte == '\\') add(text, get());
      if (byte == '"') in_string = false;
    } else if (byte == '"') {
      in_string = true;
    } else if (byte == '{' || byte == '[') {
      ++depth;
    } else if (depth == 0 && (byte == ',' || byte == ']')) {
      text.erase(text.find_last_not_of(kBlanks) + 1);
      return;
    } else if (byte == '}' || byte == ']') {
      if (--depth < 0) fail("is a '}' that closes nothing");
    }
    if (stream_.peek() < 0) break;  // after a backslash
    add(text, get());
  }
  throw FormatError(where() + ": the list ends early, in its element; was the file copied whole?");
}

bool JsonSamples::next_element(std::string& text) {
  if (ended_) return false;
  int byte = skip_blanks();
  if (byte == ']' && number_ == 0) {
    ended_ = true;
  } else if (number_ > 0) {
    if (byte < 0) fail("the list has no end ']': was the file copied whole?");
    ended_ = get() == ']';
    byte = skip_blanks();
    if (!ended_ && (byte == ']' || byte < 0)) fail("a comma is followed by no element of the list");
  } else if (byte < 0) {
    fail("the list has no end ']': was the file copied whole?");
  }
  if (ended_) {
    if (number_ == 0) get();
    if (skip_blanks() >= 0) fail("something follows the end of the list");
    return false;
  }
  ++number_;
  begin_ = at_;
  read_element(text);
  return true;
}

bool JsonSamples::next(std::string& text) {
  if (is_list_) return next_element(text);
  const bool is_first = is_from_start_ && number_ == 0;
  do {
    if (!stream_.next_line(text, number_ + 1)) return false;
    ++number_;
  } while (text.find_first_not_of(kBlanks) == std::string::npos);
  if (is_first && leaves_object_open(text)) {
    if (const auto problem = list_in_object(stream_.path()); !problem.empty()) throw FormatError(problem);
  }
  return true;
}

bool JsonSamples::is_single() {
  std::string other;
  return is_from_start_ && number_ == 1 && !next(other);
}

std::string JsonSamples::where() const {
  if (!is_list_) return fmt::format("{}: line {}", stream_.path().string(), number_);
  return fmt::format("{}: element {} at byte {}", stream_.path().string(), number_, begin_);
}

std::string list_in_object(const std::filesystem::path& file) {
  constexpr std::size_t most = std::size_t{1} << 20;
  TextStream stream(file);
  std::string head;
  while (head.size() < most && stream.peek() >= 0) head += static_cast<char>(stream.get());
  ListFinder finder;
  nlohmann::json::sax_parse(head, &finder);
  if (!finder.found()) return "";
  return fmt::format(
      "{}: is one object that holds a list of objects at '{}': write the list alone to a file, for example with "
      "jq '.[\"{}\"]' {} > list.json",
      file.string(), finder.key(), finder.key(), file.filename().string());
}

}  // namespace fsdp::detail
