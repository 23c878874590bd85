// Filters and tests of lists, numbers and other values.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <span>

#include "lib/templates/jinja/jinja_functions.hpp"

namespace fsdp::jinja {
namespace {

using Call = BuiltinCall;

// Lists

/// An element's value by a path such as "function.name".
Value by_path(Context& context, const Value& item, std::string_view path) {
  Value value = item;
  while (true) {
    const auto dot = path.find('.');
    const std::string name(path.substr(0, dot));
    std::string_view digits = name;
    const bool is_number = !name.empty() && name.find_first_not_of("0123456789") == name.npos;
    value =
        item_of(context, value, is_number ? Value(Integer{leading_number(digits, 0)}) : Value(context.heap.text(name)));
    if (dot == path.npos) return value;
    path.remove_prefix(dot + 1);
  }
}

Value by_path(Context& context, const Value& item, const Value& path) {
  return is<Text>(path) ? by_path(context, item, *std::get<Text>(path).bytes) : item_of(context, item, path);
}

/// A value as elements are compared by it: without case unless it counts.
Value sort_key(Call& call, const Value& value, bool case_counts) {
  if (case_counts || !is<Text>(value)) return value;
  return call.heap().text(lower_case(*std::get<Text>(value).bytes));
}

/// The value of an element that is compared: that of `attribute` if there is one.
Value sort_key(Call& call, const Value& item, const std::optional<Value>& attribute, bool case_counts) {
  const bool whole = !attribute || is<None>(*attribute);
  return sort_key(call, whole ? item : by_path(call.context, item, *attribute), case_counts);
}

/// The values of an element by which 'sort' compares, which takes several attributes with commas between them.
Value sort_keys(Call& call, const Value& item, const std::optional<Value>& attribute, bool case_counts) {
  std::vector<Value> keys;
  if (!attribute || !is<Text>(*attribute)) {
    keys.push_back(sort_key(call, item, attribute, case_counts));
    return call.list(std::move(keys));
  }
  std::string_view paths = *std::get<Text>(*attribute).bytes;
  for (auto comma = paths.find(',');; comma = paths.find(',')) {
    keys.push_back(sort_key(call, by_path(call.context, item, paths.substr(0, comma)), case_counts));
    if (comma == paths.npos) return call.list(std::move(keys));
    paths.remove_prefix(comma + 1);
  }
}

using Keyed = std::vector<std::pair<Value, Value>>;  ///< key and element

/// \param key  sort_key or sort_keys
Keyed with_keys(Call& call, const std::optional<Value>& attribute, bool case_counts,
                Value (*key)(Call&, const Value&, const std::optional<Value>&, bool) = sort_key) {
  Keyed all;
  for (const auto& item : elements(call.heap(), call.input))
    all.emplace_back(key(call, item, attribute, case_counts), item);
  return all;
}

void sort_by_keys(Call& call, Keyed& all, bool reverse) {
  std::stable_sort(all.begin(), all.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(call.heap(), b.first, a.first) : less(call.heap(), a.first, b.first);
  });
}

Value sorted(Call& call) {
  auto all = with_keys(call, call.values[2], call.flag(1, false), sort_keys);
  sort_by_keys(call, all, call.flag(0, false));
  std::vector<Value> items;
  for (const auto& one : all) items.push_back(one.second);
  return call.list(std::move(items));
}

Value sorted_dict(Call& call) {
  const auto* dict = std::get_if<Dict*>(&call.input);
  if (!is_plain_dict(call.input)) refuse("filter 'dictsort' needs a dictionary");
  const auto by = call.text(1, "key");
  if (by != "key" && by != "value") refuse("filter 'dictsort' sorts by key or value");
  Keyed all;
  for (const auto& [key, value] : (*dict)->items) {
    all.emplace_back(sort_key(call, by == "key" ? key : value, call.flag(0, false)),
                     call.list({key, value}, List::Shape::tuple));
  }
  sort_by_keys(call, all, call.flag(2, false));
  std::vector<Value> items;
  for (const auto& one : all) items.push_back(one.second);
  return call.list(std::move(items));
}

Value grouped(Call& call) {
  const bool case_counts = call.flag(2, false);
  Keyed all;
  for (const auto& item : elements(call.heap(), call.input)) {
    auto key = by_path(call.context, item, call.value(0));
    if (is_undefined(key) && call.values[1]) key = call.value(1);
    all.emplace_back(sort_key(call, key, case_counts), call.list({key, item}));
  }
  sort_by_keys(call, all, false);
  std::vector<Value> groups;
  for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    std::vector<Value> members;
    for (end = begin; end < all.size() && equal(call.heap(), all[begin].first, all[end].first); ++end)
      members.push_back(std::get<List*>(all[end].second)->items[1]);
    if (end == begin) refuse("filter 'groupby' meets a value that does not equal itself");
    groups.push_back(
        call.list({std::get<List*>(all[begin].second)->items[0], call.list(std::move(members))}, List::Shape::group));
  }
  return call.list(std::move(groups));
}

Value distinct(Call& call) {
  const auto all = with_keys(call, call.values[1], call.flag(0, false));
  auto& seen = *call.heap().dict();
  std::vector<Value> items;
  for (const auto& [key, item] : all) {
    if (find(call.heap(), seen, key) != nullptr) continue;
    put(call.heap(), seen, key, true);
    items.push_back(item);
  }
  return call.list(std::move(items), List::Shape::iterator);
}

Value extreme(Call& call, bool largest) {
  const auto all = with_keys(call, call.values[1], call.flag(0, false));
  if (all.empty()) return Undefined{};
  const auto* best = &all.front();
  for (const auto& one : std::span(all).subspan(1)) {
    if (largest ? less(call.heap(), best->first, one.first) : less(call.heap(), one.first, best->first)) best = &one;
  }
  return best->second;
}

/// The arguments after the first `count`, for a filter or a test that is called by name.
Arguments after(const Arguments& all, std::size_t count) {
  Arguments rest{.positional = {}, .named = all.named};
  for (std::size_t i = count; i < all.positional.size(); ++i) rest.positional.push_back(all.positional[i]);
  return rest;
}

Value mapped(Call& call) {
  std::optional<Value> attribute, otherwise;
  for (const auto& [name, value] : call.all.named) {
    if (name == "attribute") attribute = value;
    if (name == "default") otherwise = value;
  }
  const Builtin* filter = nullptr;
  if (call.all.positional.empty()) {
    if (!attribute) refuse("filter 'map' needs a filter or an attribute");
  } else {
    const auto& name = bytes_of(call.all.positional.front(), "the filter of 'map'");
    filter = find_filter(name);
    if (filter == nullptr) refuse("there is no filter '" + name + "' here");
  }
  if (!truth(call.heap(), call.input)) return call.list({}, List::Shape::iterator);
  const auto rest = after(call.all, 1);
  std::vector<Value> items;
  for (const auto& item : elements(call.heap(), call.input)) {
    auto value = filter != nullptr ? apply(call.context, *filter, item, rest) : by_path(call.context, item, *attribute);
    items.push_back(filter == nullptr && is_undefined(value) && otherwise ? *otherwise : value);
  }
  return call.list(std::move(items), List::Shape::iterator);
}

/// select, reject, selectattr and rejectattr.
Value chosen(Call& call, bool wanted, bool by_attribute) {
  const std::size_t first = by_attribute ? 1 : 0;
  const auto& arguments = call.all.positional;
  if (arguments.size() < first) refuse("a filter by attribute names none");
  const Builtin* test = nullptr;
  if (arguments.size() > first) {
    const auto& name = bytes_of(arguments[first], "the test of a filter");
    test = find_test(name);
    if (test == nullptr) refuse("there is no test '" + name + "'");
  }
  if (!truth(call.heap(), call.input)) return call.list({}, List::Shape::iterator);
  const auto rest = after(call.all, first + 1);
  std::vector<Value> items;
  for (const auto& item : elements(call.heap(), call.input)) {
    const auto value = by_attribute ? by_path(call.context, item, arguments[0]) : item;
    const bool passes = truth(call.heap(), test != nullptr ? apply(call.context, *test, value, rest) : value);
    if (passes == wanted) items.push_back(item);
  }
  return call.list(std::move(items), List::Shape::iterator);
}

Value batches(Call& call) {
  const auto size = call.integer(0, 0);
  std::vector<Value> batches, batch;
  for (const auto& item : elements(call.heap(), call.input)) {
    if (std::ssize(batch) == size) {
      batches.push_back(call.list(std::move(batch)));
      batch = {};
    }
    batch.push_back(item);
  }
  if (!batch.empty()) {
    if (call.has(1) && size > std::ssize(batch)) {
      call.heap().room(static_cast<std::uint64_t>(size), sizeof(Value));
      batch.resize(static_cast<std::size_t>(size), call.value(1));
    }
    batches.push_back(call.list(std::move(batch)));
  }
  return call.list(std::move(batches), List::Shape::iterator);
}

Value slices(Call& call) {
  const auto items = elements(call.heap(), call.input);
  const auto count = call.integer(0, 0);
  if (count < 1) refuse("filter 'slice' makes at least one list");
  call.heap().room(static_cast<std::uint64_t>(count), sizeof(Value));
  const auto slices = static_cast<std::size_t>(count), each = items.size() / slices, longer = items.size() % slices;
  std::vector<Value> lists;
  auto at = items.begin();
  for (std::size_t i = 0; i < slices; ++i) {
    const auto end = at + static_cast<std::ptrdiff_t>(each + (i < longer ? 1 : 0));
    std::vector<Value> list(at, end);
    if (call.has(1) && i >= longer) list.push_back(call.value(1));
    at = end;
    lists.push_back(call.list(std::move(list)));
  }
  return call.list(std::move(lists), List::Shape::iterator);
}

Value reversed(Call& call) {
  if (const auto* text = std::get_if<Text>(&call.input)) {
    auto all = characters(*text->bytes);
    std::reverse(all.begin(), all.end());
    return call.heap().text(utf8_of(all), text->is_escaped);
  }
  const auto* list = std::get_if<List*>(&call.input);
  const bool once = list != nullptr && (*list)->shape == List::Shape::iterator;
  auto items = elements(call.heap(), call.input);
  std::reverse(items.begin(), items.end());
  return call.list(std::move(items), once ? List::Shape::list : List::Shape::iterator);
}

Value first_of(Call& call) {
  if (auto* const* list = std::get_if<List*>(&call.input); list != nullptr && (*list)->shape == List::Shape::iterator) {
    auto& items = (*list)->items;
    if (items.empty()) return Undefined{};
    call.heap().step(items.size());
    const auto first = items.front();
    items.erase(items.begin());
    return first;
  }
  const auto items = elements(call.heap(), call.input);
  return items.empty() ? Value(Undefined{}) : items.front();
}

Value last_of(Call& call) {
  if (const auto* list = std::get_if<List*>(&call.input); list != nullptr && (*list)->shape == List::Shape::iterator)
    refuse("the result of a filter has no last element; make it a list first: | list");
  const auto items = elements(call.heap(), call.input);
  return items.empty() ? Value(Undefined{}) : items.back();
}

Value sum_of(Call& call) {
  Value sum = call.has(1) ? call.value(1) : Value(Integer{0});
  for (const auto& item : elements(call.heap(), call.input))
    sum = calculate(call.heap(), '+', sum, call.has(0) ? by_path(call.context, item, call.value(0)) : item);
  return sum;
}

Value joined_filter(Call& call) {
  auto items = elements(call.heap(), call.input);
  if (call.has(1)) {
    for (auto& item : items) item = by_path(call.context, item, call.value(1));
  }
  return call.made(joined(call.heap(), items, call.values[0] ? print(call.heap(), call.value(0)) : "", false));
}

// Numbers

/// A text without white space at its ends, and with the decimal digits of all scripts as ASCII's, as Python takes them.
std::string with_ascii_digits(std::string_view text) {
  auto all = characters(strip(text));
  for (auto& one : all) {
    if (one < 0x80 || !is_decimal(one)) continue;
    char32_t before = 0;  // digits come in tens, of which the first is 0
    while (is_decimal(one - before - 1)) ++before;
    one = U'0' + before % 10;
  }
  return utf8_of(all);
}

/// Reads a whole number as Python's int(). \return nothing when the text is none
std::optional<Integer> parse_integer(std::string_view given, std::int64_t base) {
  const auto digits = with_ascii_digits(given);
  std::string_view text = digits;
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const auto has_prefix = [&](char letter) { return text.size() > 1 && text[0] == '0' && (text[1] | 0x20) == letter; };
  for (const auto& [letter, meant] : {std::pair{'x', 16}, std::pair{'o', 8}, std::pair{'b', 2}}) {
    if ((base == meant || base == 0) && has_prefix(letter)) {
      base = meant;
      text.remove_prefix(2);
    }
  }
  if (base == 0) base = 10;
  Integer value = 0;
  bool after_digit = false;
  for (const char c : text) {
    if (c == '_' && after_digit) {
      after_digit = false;
      continue;
    }
    const int digit = c >= '0' && c <= '9'                               ? c - '0'
                      : std::isalpha(static_cast<unsigned char>(c)) != 0 ? (c | 0x20) - 'a' + 10
                                                                         : 99;
    if (digit >= base) return {};
    if (__builtin_mul_overflow(value, static_cast<Integer>(base), &value) ||
        __builtin_add_overflow(value, digit, &value))
      refuse("a number has more than 128 bits");
    after_digit = true;
  }
  if (!after_digit) return {};
  return negative ? -value : value;
}

std::optional<double> parse_double(std::string_view text) {
  auto digits = with_ascii_digits(text);
  if (digits.starts_with('+')) digits.erase(0, 1);
  std::erase(digits, '_');
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc::result_out_of_range) value = std::strtod(digits.c_str(), nullptr);  // infinite, or 0
  if ((error != std::errc() && error != std::errc::result_out_of_range) || end != digits.data() + digits.size())
    return {};
  return value;
}

Value to_integer(Call& call) {
  if (const auto* missing = std::get_if<Undefined>(&call.input)) refuse(*missing);
  const auto otherwise = call.values[0] ? call.value(0) : Value(Integer{0});
  std::optional<Integer> found;
  if (const auto* text = std::get_if<Text>(&call.input)) {
    found = parse_integer(*text->bytes, call.integer(1, 10));
    const auto number = found ? std::nullopt : parse_double(*text->bytes);
    if (number) found = whole_part(*number);
  } else if (const auto* number = std::get_if<double>(&call.input)) {
    found = whole_part(*number);
  } else {
    found = as_integer(call.input);
  }
  return found ? Value(*found) : otherwise;
}

Value to_double(Call& call) {
  if (const auto* missing = std::get_if<Undefined>(&call.input)) refuse(*missing);
  const auto found = is<Text>(call.input) ? parse_double(*std::get<Text>(call.input).bytes) : as_double(call.input);
  return found ? Value(*found) : call.values[0] ? call.value(0) : Value(0.0);
}

/// The multiple of 10^places nearest to `number`, the even one of two, as Python rounds integers.
Value rounded_to_tens(Call& call, Integer number, int places) {
  Integer unit = 1;
  for (int i = 0; i < places; ++i)
    if (__builtin_mul_overflow(unit, Integer{10}, &unit)) return Integer{0};  // above twice any Integer
  const Integer quotient = number / unit, rest = number % unit, size = rest < 0 ? -rest : rest;
  const bool up = size > unit - size || (size == unit - size && quotient % 2 != 0);
  const Integer away = number < 0 ? -1 : 1;
  return calculate(call.heap(), '*', quotient + (up ? away : 0), unit);
}

Value rounded(Call& call) {
  const auto number = as_double(call.input);
  if (!number) refuse(std::string("a value of type ") + type_name(call.input) + " is rounded");
  const auto method = call.text(1, "common");
  const auto precision = static_cast<int>(std::clamp<std::int64_t>(call.integer(0, 0), -400, 400));
  const double scale = std::pow(10.0, precision);
  // Python makes whole numbers of both, which know no -0.
  if (method == "ceil") return (std::ceil(*number * scale) + 0.0) / scale;
  if (method == "floor") return (std::floor(*number * scale) + 0.0) / scale;
  if (method != "common") refuse("filter 'round' rounds 'common', 'ceil' or 'floor'");
  if (!std::isfinite(*number)) return *number;
  if (const auto integer = as_integer(call.input))
    return precision >= 0 ? Value(*integer) : rounded_to_tens(call, *integer, -precision);
  if (precision < 0) {
    const double unit = std::pow(10.0, -precision);
    return std::isinf(unit) ? 0.0 : std::nearbyint(*number / unit) * unit;
  }
  // The decimal digits of the exact value decide, as in Python.
  return *parse_double(fmt::format("{:.{}f}", *number, precision));
}

Value absolute(Call& call) {
  if (const auto integer = as_integer(call.input))
    return *integer < 0 ? calculate(call.heap(), '-', Integer{0}, *integer) : Value(*integer);
  if (const auto number = as_double(call.input)) return std::abs(*number);
  refuse(std::string("a value of type ") + type_name(call.input) + " has no absolute value");
}

/// True when a number, divided by 2, leaves `rest`.
bool leaves(Call& call, int rest) {
  return equal(call.heap(), calculate(call.heap(), '%', call.input, Integer{2}), Integer{rest});
}

// Other filters

Value json_filter(Call& call) {
  JsonStyle style;
  style.only_ascii = call.flag(0, false);
  style.sort_keys = call.flag(3, false);
  if (call.has(1)) {
    const auto* text = std::get_if<Text>(&call.value(1));
    const auto width = text != nullptr ? 0 : std::max<std::int64_t>(0, position(call.value(1), "indent"));
    call.heap().room(static_cast<std::uint64_t>(width));
    style.indent = text != nullptr ? *text->bytes : std::string(static_cast<std::size_t>(width), ' ');
    style.item_separator = ",";
  }
  if (call.has(2)) {
    const auto separators = elements(call.heap(), call.value(2));
    if (separators.size() != 2) refuse("filter 'tojson' needs two separators");
    style.item_separator = bytes_of(separators[0], "a separator");
    style.key_separator = bytes_of(separators[1], "a separator");
  }
  return call.made(to_json(call.heap(), call.input, style));
}

Value defaulted(Call& call) {
  const bool missing = is_undefined(call.input) || (call.flag(1, false) && !truth(call.heap(), call.input));
  return !missing ? call.input : call.values[0] ? call.value(0) : call.made("");
}

template <char Operation>
Value compared(Call& call) {
  const auto &a = call.input, &b = call.value(0);
  switch (Operation) {
    case '=':
      return equal(call.heap(), a, b);
    case '!':
      return !equal(call.heap(), a, b);
    case '<':
      return less(call.heap(), a, b);
    case '>':
      return less(call.heap(), b, a);
    case 'l':
      return less(call.heap(), a, b) || equal(call.heap(), a, b);
    default:
      return less(call.heap(), b, a) || equal(call.heap(), a, b);
  }
}

Value is_same(Call& call) {
  const auto &a = call.input, &b = call.value(0);
  if (a.index() != b.index()) return false;
  if (const auto* list = std::get_if<List*>(&a)) return *list == std::get<List*>(b);
  if (const auto* dict = std::get_if<Dict*>(&a)) return *dict == std::get<Dict*>(b);
  return equal(call.heap(), a, b);
}

}  // namespace

Value length_of(Call& call) {
  if (const auto* text = std::get_if<Text>(&call.input)) return Integer{count_characters(*text->bytes)};
  if (const auto* list = std::get_if<List*>(&call.input); list != nullptr && (*list)->shape != List::Shape::iterator)
    return Integer{(*list)->items.size()};
  if (const auto* dict = std::get_if<Dict*>(&call.input); dict != nullptr && !(*dict)->is_namespace)
    return Integer{(*dict)->items.size()};
  if (const auto* loop = std::get_if<Loop*>(&call.input)) return Integer{(*loop)->length()};
  if (is_undefined(call.input)) return Integer{0};
  refuse(std::string("a value of type ") + type_name(call.input) + " has no length");
}

Value items_of(Call& call) {
  if (is_undefined(call.input)) return call.list({}, List::Shape::iterator);
  const auto* dict = std::get_if<Dict*>(&call.input);
  if (dict == nullptr || (*dict)->is_namespace) refuse("only a dictionary has items");
  std::vector<Value> items;
  for (const auto& [key, value] : (*dict)->items) items.emplace_back(call.list({key, value}, List::Shape::tuple));
  return call.list(std::move(items), List::Shape::items);
}

std::optional<Integer> whole_part(double number) {
  if (!std::isfinite(number)) return {};
  if (std::abs(number) > 1e38) refuse("a number has more than 128 bits");
  return static_cast<Integer>(number);
}

const std::vector<Builtin>& value_filters() {
  static const std::vector<Builtin> all{
      {"abs", {}, 0, absolute},
      {"attr",
       {"name"},
       1,
       [](Call& c) {
         const auto& name = bytes_of(c.value(0), "an attribute");
         if (is_plain_dict(c.input)) return method_of(c.context, c.input, name).value_or(Undefined{&name, "dict"});
         return member_of(c.context, c.input, name);
       }},
      {"batch", {"linecount", "fill_with"}, 1, batches},
      {"count", {}, 0, length_of},
      {"d", {"default_value", "boolean"}, 0, defaulted},
      {"default", {"default_value", "boolean"}, 0, defaulted},
      {"dictsort", {"case_sensitive", "by", "reverse"}, 0, sorted_dict},
      {"first", {}, 0, first_of},
      {"float", {"default"}, 0, to_double},
      {"groupby", {"attribute", "default", "case_sensitive"}, 1, grouped},
      {"int", {"default", "base"}, 0, to_integer},
      {"items", {}, 0, [](Call& c) { return c.list(elements(c.heap(), items_of(c)), List::Shape::iterator); }},
      {"join", {"d", "attribute"}, 0, joined_filter},
      {"last", {}, 0, last_of},
      {"length", {}, 0, length_of},
      {"list", {}, 0, [](Call& c) { return c.list(elements(c.heap(), c.input)); }},
      {"map", {}, 0, mapped, true},
      {"max", {"case_sensitive", "attribute"}, 0, [](Call& c) { return extreme(c, true); }},
      {"min", {"case_sensitive", "attribute"}, 0, [](Call& c) { return extreme(c, false); }},
      {"random", {}, 0, [](Call&) -> Value { refuse("filter 'random' takes another element each time"); }},
      {"reject", {}, 0, [](Call& c) { return chosen(c, false, false); }, true},
      {"rejectattr", {}, 0, [](Call& c) { return chosen(c, false, true); }, true},
      {"reverse", {}, 0, reversed},
      {"round", {"precision", "method"}, 0, rounded},
      {"select", {}, 0, [](Call& c) { return chosen(c, true, false); }, true},
      {"selectattr", {}, 0, [](Call& c) { return chosen(c, true, true); }, true},
      {"slice", {"slices", "fill_with"}, 1, slices},
      {"sort", {"reverse", "case_sensitive", "attribute"}, 0, sorted},
      {"sum", {"attribute", "start"}, 0, sum_of},
      {"tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, 0, json_filter},
      {"unique", {"case_sensitive", "attribute"}, 0, distinct},
  };
  return all;
}

const std::vector<Builtin>& value_tests() {
  static const std::vector<Builtin> all{
      {"!=", {"other"}, 1, compared<'!'>},
      {"<", {"other"}, 1, compared<'<'>},
      {"<=", {"other"}, 1, compared<'l'>},
      {"==", {"other"}, 1, compared<'='>},
      {">", {"other"}, 1, compared<'>'>},
      {">=", {"other"}, 1, compared<'g'>},
      {"boolean", {}, 0, [](Call& c) -> Value { return is<bool>(c.input); }},
      {"callable",
       {},
       0,
       [](Call& c) -> Value { return is<Function*>(c.input) || is<Loop*>(c.input) || is_undefined(c.input); }},
      {"defined", {}, 0, [](Call& c) -> Value { return !is_undefined(c.input); }},
      {"divisibleby",
       {"num"},
       1,
       [](Call& c) -> Value { return !truth(c.heap(), calculate(c.heap(), '%', c.input, c.value(0))); }},
      {"eq", {"other"}, 1, compared<'='>},
      {"equalto", {"other"}, 1, compared<'='>},
      {"escaped", {}, 0, [](Call& c) -> Value { return is<Text>(c.input) && std::get<Text>(c.input).is_escaped; }},
      {"even", {}, 0, [](Call& c) -> Value { return leaves(c, 0); }},
      {"false", {}, 0, [](Call& c) -> Value { return is<bool>(c.input) && !std::get<bool>(c.input); }},
      {"filter", {}, 0, [](Call& c) -> Value { return is<Text>(c.input) && find_filter(self(c)) != nullptr; }},
      {"float", {}, 0, [](Call& c) -> Value { return is<double>(c.input); }},
      {"ge", {"other"}, 1, compared<'g'>},
      {"greaterthan", {"other"}, 1, compared<'>'>},
      {"gt", {"other"}, 1, compared<'>'>},
      {"in", {"seq"}, 1, [](Call& c) -> Value { return contains(c.context, c.value(0), c.input); }},
      {"integer", {}, 0, [](Call& c) -> Value { return is<Integer>(c.input); }},
      {"iterable",
       {},
       0,
       [](Call& c) -> Value {
         return is<Text>(c.input) || is<List*>(c.input) || is_plain_dict(c.input) || is<Loop*>(c.input) ||
                is_undefined(c.input);
       }},
      {"le", {"other"}, 1, compared<'l'>},
      {"lessthan", {"other"}, 1, compared<'<'>},
      {"lt", {"other"}, 1, compared<'<'>},
      {"mapping", {}, 0, [](Call& c) -> Value { return is_plain_dict(c.input); }},
      {"ne", {"other"}, 1, compared<'!'>},
      {"none", {}, 0, [](Call& c) -> Value { return is<None>(c.input); }},
      {"number", {}, 0, [](Call& c) -> Value { return as_double(c.input).has_value(); }},
      {"odd", {}, 0, [](Call& c) -> Value { return leaves(c, 1); }},
      {"sameas", {"other"}, 1, is_same},
      {"sequence",
       {},
       0,
       [](Call& c) -> Value {
         const auto* list = std::get_if<List*>(&c.input);
         return is<Text>(c.input) || is_plain_dict(c.input) || is_undefined(c.input) ||
                (list != nullptr && (*list)->is_sequence());
       }},
      {"string", {}, 0, [](Call& c) -> Value { return is<Text>(c.input); }},
      {"test", {}, 0, [](Call& c) -> Value { return is<Text>(c.input) && find_test(self(c)) != nullptr; }},
      {"true", {}, 0, [](Call& c) -> Value { return is<bool>(c.input) && std::get<bool>(c.input); }},
      {"undefined", {}, 0, [](Call& c) -> Value { return is_undefined(c.input); }},
  };
  return all;
}

}  // namespace fsdp::jinja
