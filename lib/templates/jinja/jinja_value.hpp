#pragma once
// Values of a template that is being rendered, as Python has them, and what they cost.
#include <cstdint>
#include <deque>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lib/templates/jinja/jinja.hpp"

namespace fsdp::jinja {

__extension__ using Integer = __int128;

struct List;
struct Dict;
struct Function;
struct Loop;

/// Nothing under a name. It prints nothing; most uses of it are errors.
struct Undefined {
  const std::string* name = nullptr;  ///< lives as long as the rendering
  const char* owner = nullptr;        ///< kind of the value that has no such member; nullptr: a variable
};
struct None {};
struct Text {
  const std::string* bytes;  ///< UTF-8
  bool is_escaped = false;   ///< for HTML; text that is added is escaped
};

/// Lists, dictionaries, functions and texts belong to the Heap. Copies of a value share them.
using Value = std::variant<Undefined, None, bool, Integer, double, Text, List*, Dict*, Function*, Loop*>;

struct List {
  enum class Shape : std::uint8_t {
    list,
    tuple,
    group,  ///< tuple of groupby: grouper and list
    range,
    keys,  ///< views of a dictionary
    values,
    items,
    iterator  ///< can be iterated over once, and has no length
  };
  std::vector<Value> items;
  Shape shape = Shape::list;

  bool is_tuple() const { return shape == Shape::tuple || shape == Shape::group; }
  /// True when elements have numbers.
  bool is_sequence() const { return shape <= Shape::range; }
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;  ///< in order of insertion
  bool is_namespace = false;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

struct Function {
  std::string name;
  std::function<Value(const Arguments&)> call;
  std::vector<std::pair<std::string, Value>> members = {};  ///< attributes beside its name
};

/// \throws FormatError
[[noreturn]] void refuse(const std::string& problem);
/// Says what is missing. \throws FormatError
[[noreturn]] void refuse(const Undefined& value);

/// Memory of a rendering, freed as a whole, and its limits.
class Heap {
 public:
  /// \param strict  undefined values are errors where they are used
  explicit Heap(const JinjaLimits& limits, bool strict = false) : limits_(limits), strict_(strict) {}

  /// \throws FormatError when the rendering has taken too many steps
  void step(std::uint64_t count = 1);
  /// Counts a pass over a text.
  void pass(std::string_view text) { step(1 + text.size() / 32); }
  /// Counts a search, which compares as much of `wanted` as repeats at each place of `text`.
  void search(std::string_view text, std::string_view wanted) {
    step(1 + text.size() / 32 + (text.size() / 64) * (wanted.size() / 64));
  }
  /// Checks before `count` things of `each` bytes are allocated. \throws FormatError when they exceed the limit
  void room(std::uint64_t count, std::uint64_t each = 1) const;

  /// A strict rendering prints, asks, compares and goes through no undefined value. \throws FormatError
  void use(const Value& value) const {
    if (const auto* missing = std::get_if<Undefined>(&value); missing != nullptr && strict_) refuse(*missing);
  }

  // Results are owned by this object. \throws FormatError when they exceed the limit

  Text text(std::string bytes, bool is_escaped = false);
  List* list(std::vector<Value> items, List::Shape shape = List::Shape::list);
  Dict* dict(std::vector<std::pair<Value, Value>> items = {});
  Function* function(std::string name, std::function<Value(const Arguments&)> call);
  void count(std::uint64_t bytes);

 private:
  JinjaLimits limits_;
  bool strict_;
  std::uint64_t steps_ = 0;
  std::uint64_t bytes_ = 0;
  std::deque<std::string> texts_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Function> functions_;
};

template <typename T>
bool is(const Value& value) {
  return std::holds_alternative<T>(value);
}
inline bool is_undefined(const Value& value) { return is<Undefined>(value); }

/// "str", "int", as Python names the type
const char* type_name(const Value& value);
Value from_json(Heap& heap, const nlohmann::ordered_json& json);

bool truth(Heap& heap, const Value& value);
/// Python's str() and repr().
std::string print(Heap& heap, const Value& value);
std::string represent(Heap& heap, const Value& value);

struct JsonStyle {
  bool only_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ", key_separator = ": ";
};
/// Python's json.dumps().
std::string to_json(Heap& heap, const Value& value, const JsonStyle& style);

bool equal(Heap& heap, const Value& a, const Value& b);
/// \throws FormatError when the values have no order
bool less(Heap& heap, const Value& a, const Value& b);
/// False for lists and dictionaries.
bool can_be_key(const Value& value);
/// Where `key` is in `dict`; nullptr when it is not there.
Value* find(Heap& heap, Dict& dict, const Value& key);
void put(Heap& heap, Dict& dict, const Value& key, const Value& value);
/// The elements of a value, as a loop sees them; those of an iterator are taken from it.
std::vector<Value> elements(Heap& heap, const Value& value);

/// + - * / % and, as 'f' and 'p', // and **
Value calculate(Heap& heap, char operation, const Value& a, const Value& b);
std::optional<double> as_double(const Value& value);
/// The value of an integer or a truth value.
std::optional<Integer> as_integer(const Value& value);
/// An integer within the range of positions, clamped. \throws FormatError for other values, naming `what`
std::int64_t position(const Value& value, const char* what);
/// The bytes of a text. \throws FormatError for other values, naming `what`
const std::string& bytes_of(const Value& value, const char* what);
/// The text for HTML.
std::string escape_html(std::string_view text);
/// Python's formatting with %. \param values  a tuple, a dictionary, or one value, which may be undefined
std::string format_percent(Heap& heap, std::string_view format, const Value& values);

// Characters of UTF-8 texts.

std::u32string characters(std::string_view text);
std::string utf8_of(std::u32string_view characters);
std::size_t count_characters(std::string_view text);
/// Whether repr() shows a character as it is.
bool is_printable(char32_t character);
/// str.isdecimal() of a character: a digit of any script
bool is_decimal(char32_t character);
/// str.isspace() of a character
bool is_space(char32_t character);
/// `text` without white space at its ends, as Python's strip().
std::string_view strip(std::string_view text, bool left = true, bool right = true);

}  // namespace fsdp::jinja
