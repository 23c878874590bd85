#pragma once
// The filters, tests, methods and functions that templates call.
#include <cstddef>
#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/templates/jinja/jinja_value.hpp"

namespace fsdp::jinja {

struct Context {
  Heap& heap;
  const std::tm& now;
};

/// The value of `loop` within a loop.
struct Loop {
  Loop() = default;
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  virtual ~Loop() = default;
  virtual Value member(const std::string& name) = 0;
  /// Runs the loop's body for other elements. \return its output
  virtual Value call(const Arguments& arguments) = 0;
  virtual std::size_t length() = 0;
};

/// A call of a filter, a test, a method or a function.
struct BuiltinCall {
  Context& context;
  const Value& input;
  const Arguments& all;
  std::vector<std::optional<Value>> values;  ///< by parameter

  Heap& heap() const { return context.heap; }
  bool has(std::size_t i) const { return values[i] && !is<None>(*values[i]); }
  const Value& value(std::size_t i) const { return *values[i]; }
  std::int64_t integer(std::size_t i, std::int64_t otherwise) const {
    return has(i) ? position(value(i), "an argument") : otherwise;
  }
  bool flag(std::size_t i, bool otherwise) const { return values[i] ? truth(heap(), value(i)) : otherwise; }
  std::string text(std::size_t i, const char* otherwise) const {
    return has(i) ? bytes_of(value(i), "an argument") : otherwise;
  }
  Value made(std::string text) const { return heap().text(std::move(text)); }
  Value list(std::vector<Value> items, List::Shape shape = List::Shape::list) const {
    return heap().list(std::move(items), shape);
  }
};

struct Builtin {
  const char* name;
  std::vector<const char*> parameters;
  std::size_t required;
  Value (*call)(BuiltinCall&);
  bool is_open = false;  ///< takes any arguments beyond its parameters
  /// Makes escaped texts of an escaped text, as markupsafe's Markup does, with this argument escaped, too; -1: none.
  std::optional<int> escapes = {};
};

/// Rows for texts and for other values.
const std::vector<Builtin>& text_filters();
const std::vector<Builtin>& text_tests();
const std::vector<Builtin>& text_methods();
const std::vector<Builtin>& value_filters();
const std::vector<Builtin>& value_tests();

// Used by several files of this folder.

inline bool is_plain_dict(const Value& value) {
  const auto* dict = std::get_if<Dict*>(&value);
  return dict != nullptr && !(*dict)->is_namespace;
}
/// The text of a format. \throws FormatError for an escaped one, whose values Jinja escapes before they are laid out
const std::string& format_of(const Value& text);
inline const std::string& self(const BuiltinCall& call) { return bytes_of(call.input, "it"); }
Value length_of(BuiltinCall& call);
/// The pairs of a dictionary.
Value items_of(BuiltinCall& call);
std::string lower_case(std::string_view text);
/// \param align  '<', '>' or '^'
std::string padded(Heap& heap, const std::string& text, std::int64_t width, char align, std::string_view fill = " ");
/// The method and the filter of this name.
Value format_method(BuiltinCall& call);
Value format_filter(BuiltinCall& call);
std::string joined(Heap& heap, const std::vector<Value>& items, const std::string& separator, bool only_texts);
/// Reads digits from the beginning of `text`.
std::int64_t leading_number(std::string_view& text, std::int64_t otherwise);
/// \return nothing for a number that is not finite
std::optional<Integer> whole_part(double number);
std::optional<Value> method_of(Context& context, const Value& object, const std::string& name);

/// nullptr when there is no such filter or test
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
/// One that only JinjaEnvironment::strict has.
const Builtin* find_strict_filter(std::string_view name);

/// Applies a filter or a test to `input`. \throws FormatError naming it
Value apply(Context& context, const Builtin& builtin, const Value& input, const Arguments& arguments);

/// a.b: a method, else an element.
Value member_of(Context& context, const Value& object, const std::string& name);
/// a[b]: an element, else a method.
Value item_of(Context& context, const Value& object, const Value& key);
/// a[first:last:step]; missing bounds are None
Value slice_of(Context& context, const Value& object, const Value& first, const Value& last, const Value& step);
bool contains(Context& context, const Value& container, const Value& element);
Value call(const Value& function, const Arguments& arguments);
/// raise_exception, strftime_now, and Jinja's own: namespace, dict, range, cycler, joiner, lipsum
std::vector<std::pair<std::string, Value>> global_functions(Context& context);

}  // namespace fsdp::jinja
