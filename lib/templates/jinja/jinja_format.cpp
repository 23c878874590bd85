// Python's formatting: %, str.format(), and the filter format.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "lib/templates/jinja/jinja_case.hpp"
#include "lib/templates/jinja/jinja_functions.hpp"

namespace fsdp::jinja {
namespace {

using Call = BuiltinCall;

struct Spec {
  std::string fill = " ";
  char align = 0;
  char sign = '-';
  bool alternate = false, zeros = false, commas = false;
  std::int64_t width = 0, precision = -1;
  char type = 0;
};

std::string number_as(const Value& value, const Spec& spec) {
  constexpr std::int64_t most = 1000;
  if (spec.precision > most) refuse("a number is formatted with more than 1000 digits");
  const auto precision = static_cast<int>(spec.precision < 0 ? 6 : spec.precision);
  const auto integer = as_integer(value);
  std::string digits;
  bool negative = false;
  if (std::string_view("dxXob").find(spec.type) != std::string_view::npos) {
    if (!integer) refuse(std::string("a value of type ") + type_name(value) + " is formatted as a whole number");
    negative = *integer < 0;
    digits = spec.type == 'd'   ? fmt::format("{}", *integer)
             : spec.type == 'x' ? fmt::format("{:x}", *integer)
             : spec.type == 'X' ? fmt::format("{:X}", *integer)
             : spec.type == 'o' ? fmt::format("{:o}", *integer)
                                : fmt::format("{:b}", *integer);
    if (spec.alternate && spec.type != 'd') digits.insert(negative ? 1 : 0, std::string("0") + spec.type);
  } else {
    const auto number = as_double(value);
    if (!number) refuse(std::string("a value of type ") + type_name(value) + " is formatted as a number");
    negative = std::signbit(*number) && !std::isnan(*number);
    const double shown = spec.type == '%' ? *number * 100 : *number;
    digits = spec.type == 'e'   ? fmt::format("{:.{}e}", shown, precision)
             : spec.type == 'E' ? fmt::format("{:.{}E}", shown, precision)
             : spec.type == 'g' ? fmt::format("{:.{}g}", shown, precision)
             : spec.type == 'G' ? fmt::format("{:.{}G}", shown, precision)
                                : fmt::format("{:.{}f}", shown, precision);
    if (spec.type == '%') digits += '%';
  }
  if (spec.commas) {
    const std::size_t begin = negative ? 1 : 0;
    for (auto at = std::min(digits.find('.'), digits.size()); at > begin + 3; digits.insert(at, ",")) at -= 3;
  }
  if (!negative && spec.sign != '-') digits.insert(0, 1, spec.sign);
  return digits;
}

std::string laid_out(Heap& heap, std::string text, const Spec& spec, bool is_number) {
  if (is_number && (spec.zeros || spec.align == '=')) {
    std::size_t sign = !text.empty() && std::string_view("+- ").find(text.front()) != std::string_view::npos ? 1 : 0;
    if (text.size() > sign + 1 && text[sign] == '0' &&
        std::string_view("xXob").find(text[sign + 1]) != std::string_view::npos)
      sign += 2;
    return text.substr(0, sign) + padded(heap, text.substr(sign), spec.width - static_cast<std::int64_t>(sign), '>',
                                         spec.zeros ? "0" : spec.fill);
  }
  return padded(heap, text, spec.width, spec.align != 0 ? spec.align : is_number ? '>' : '<', spec.fill);
}

std::string cut(const std::string& text, std::int64_t precision) {
  if (precision < 0 || count_characters(text) <= static_cast<std::size_t>(precision)) return text;
  return utf8_of(characters(text).substr(0, static_cast<std::size_t>(precision)));
}

/// Formatting of one value with a format_spec of str.format().
std::string format_value(Heap& heap, const Value& value, std::string_view text) {
  Spec spec;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  auto all = characters(text);
  if (all.size() > 1 && all[1] < 0x80 && is_align(static_cast<char>(all[1]))) {
    spec.fill = utf8_of(all.substr(0, 1));
    text.remove_prefix(spec.fill.size());
  }
  const auto take = [&](std::string_view signs) {
    const char c = !text.empty() && signs.find(text.front()) != signs.npos ? text.front() : '\0';
    if (c != 0) text.remove_prefix(1);
    return c;
  };
  spec.align = take("<>^=");
  if (const char sign = take("+- ")) spec.sign = sign;
  spec.alternate = take("#") != 0;
  spec.zeros = take("0") != 0 && spec.align == 0;
  if (!text.empty() && text.front() != '-') spec.width = leading_number(text, 0);
  spec.commas = take(",") != 0;
  if (take(".") != 0) spec.precision = leading_number(text, -1);
  spec.type = take("sdxXobeEfFgG%");
  if (!text.empty()) refuse("a format is not supported: '" + std::string(text) + "'");
  const bool is_number = (as_double(value) && !is<bool>(value)) || (spec.type != 0 && spec.type != 's');
  if (!is_number) return laid_out(heap, cut(print(heap, value), spec.precision), spec, false);
  if (spec.type == 0 && !is<double>(value)) spec.type = 'd';
  if (spec.type == 0 && spec.precision < 0) return laid_out(heap, print(heap, value), spec, true);
  if (spec.type == 0) spec.type = 'g';
  return laid_out(heap, number_as(value, spec), spec, true);
}

/// The value that a field such as 0.name[1] of str.format() names.
Value field(Call& call, std::string_view name, std::size_t& next) {
  const auto end = std::min(name.find_first_of(".["), name.size());
  const std::string first(name.substr(0, end));
  name.remove_prefix(end);
  Value value;
  if (first.empty() || is_decimal(static_cast<unsigned char>(first.front()))) {
    std::string_view digits = first;
    const auto i = first.empty() ? next++ : static_cast<std::size_t>(leading_number(digits, 0));
    if (i >= call.all.positional.size()) refuse("a format has more fields than there are values");
    value = call.all.positional[i];
  } else {
    call.heap().step(1 + call.all.named.size() / 16);
    const auto found = std::find_if(call.all.named.begin(), call.all.named.end(),
                                    [&](const auto& argument) { return argument.first == first; });
    if (found == call.all.named.end()) refuse("a format names '" + first + "', which is not given");
    value = found->second;
  }
  while (!name.empty()) {
    const bool item = name.front() == '[';
    name.remove_prefix(1);
    const auto stop = std::min(item ? name.find(']') : name.find_first_of(".["), name.size());
    const std::string key(name.substr(0, stop));
    name.remove_prefix(std::min(name.size(), stop + (item ? 1 : 0)));
    std::string_view digits = key;
    const bool is_number = item && !key.empty() && key.find_first_not_of("0123456789") == key.npos;
    value = !item       ? member_of(call.context, value, *call.heap().text(key).bytes)
            : is_number ? item_of(call.context, value, Integer{leading_number(digits, 0)})
                        : item_of(call.context, value, call.heap().text(key));
  }
  if (const auto* missing = std::get_if<Undefined>(&value)) refuse(*missing);
  return value;
}

/// Takes the flags of a field of % from its beginning.
void take_flags(std::string_view& format, Spec& spec) {
  for (; !format.empty() && std::string_view("#0- +").find(format.front()) != std::string_view::npos;
       format.remove_prefix(1)) {
    if (format.front() == '-') spec.align = '<';
    if (format.front() == '0') spec.zeros = true;
    if (format.front() == '#') spec.alternate = true;
    if (format.front() == '+' || (format.front() == ' ' && spec.sign != '+')) spec.sign = format.front();
  }
  if (spec.align == '<') spec.zeros = false;
}

/// The text of one field of %.
std::string percent_field(Heap& heap, Spec spec, Value value) {
  const bool as_text = spec.type == 's' || spec.type == 'r' || spec.type == 'a' || spec.type == 'c';
  if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
  if (spec.type == 'F') spec.type = 'f';
  if (!as_text && std::string_view("dxXoeEfgG").find(spec.type) == std::string_view::npos)
    refuse("a format has an unknown field");
  if (spec.type == 'd' && is<double>(value)) {
    const auto whole = whole_part(std::get<double>(value));
    if (!whole) refuse("a number that is not finite is formatted as a whole number");
    value = *whole;
  }
  if (spec.type == 'c' && as_integer(value)) {
    const auto code = static_cast<char32_t>(std::clamp<std::int64_t>(position(value, "a character"), -1, 0x110000));
    value = heap.text(utf8_of(std::u32string_view(&code, 1)));
  }
  const auto text = !as_text                               ? number_as(value, spec)
                    : spec.type == 'r' || spec.type == 'a' ? cut(represent(heap, value), spec.precision)
                                                           : cut(print(heap, value), spec.precision);
  if (as_text) spec.zeros = false;
  return laid_out(heap, text, spec, !as_text || spec.align == 0);
}

}  // namespace

const std::string& format_of(const Value& text) {
  if (is<Text>(text) && std::get<Text>(text).is_escaped)
    refuse("an escaped text is used as a format; format first and escape then");
  return bytes_of(text, "it");
}

std::int64_t leading_number(std::string_view& text, std::int64_t otherwise) {
  std::int64_t number = otherwise;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::result_out_of_range || number < -1) refuse("a format has a number that is too large");
  if (error == std::errc()) text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

Value format_method(Call& call) {
  std::string_view format = format_of(call.input);
  std::string out;
  std::size_t next = 0;
  while (!format.empty()) {
    const auto at = std::min(format.find_first_of("{}"), format.size());
    out += format.substr(0, at);
    format.remove_prefix(at);
    if (format.empty()) break;
    if (format.size() > 1 && format[0] == format[1]) {
      out += format[0];
      format.remove_prefix(2);
      continue;
    }
    const auto end = format.find('}');
    if (format[0] == '}' || end == format.npos) refuse("a format has a single '" + std::string(1, format[0]) + "'");
    const auto inside = format.substr(1, end - 1);
    format.remove_prefix(end + 1);
    if (inside.find('{') != inside.npos) refuse("a format within a format is not supported");
    const auto colon = std::min(inside.find(':'), inside.size());
    auto name = inside.substr(0, colon);
    const auto mark = name.find('!');
    const bool repr = mark != name.npos && name.substr(mark) == "!r";
    if (mark != name.npos && !repr && name.substr(mark) != "!s") refuse("a format has an unknown conversion");
    auto value = field(call, name.substr(0, mark), next);
    if (mark != name.npos) value = call.made(repr ? represent(call.heap(), value) : print(call.heap(), value));
    out += format_value(call.heap(), value, inside.substr(std::min(inside.size(), colon + 1)));
    call.heap().room(out.size());
  }
  return call.made(std::move(out));
}

Value format_filter(Call& call) {
  auto& named = *call.heap().dict();
  for (const auto& [name, value] : call.all.named) put(call.heap(), named, call.heap().text(name), value);
  if (!named.items.empty() && !call.all.positional.empty())
    refuse("filter 'format' takes values by position or by name");
  const Value values = named.items.empty() ? call.list(call.all.positional, List::Shape::tuple) : Value(&named);
  return call.made(format_percent(
      call.heap(), is<Text>(call.input) ? format_of(call.input) : print(call.heap(), call.input), values));
}

std::string format_percent(Heap& heap, std::string_view format, const Value& values) {
  const auto* list = std::get_if<List*>(&values);
  const bool is_tuple = list != nullptr && (*list)->is_tuple();
  const auto all = is_tuple ? (*list)->items : std::vector<Value>{values};
  auto* const* names = std::get_if<Dict*>(&values);
  std::size_t next = 0;
  bool by_name = false;
  const auto take = [&]() -> const Value& {
    if (next >= all.size()) refuse("a format has more fields than there are values");
    return all[next++];
  };
  std::string out;
  while (!format.empty()) {
    const auto at = std::min(format.find('%'), format.size());
    out += format.substr(0, at);
    format.remove_prefix(at);
    if (format.empty()) break;
    format.remove_prefix(1);
    Spec spec;
    std::optional<Value> value;
    if (format.starts_with('(')) {
      const auto end = format.find(')');
      if (names == nullptr || end == format.npos) refuse("a format names a value, and there are no names");
      const auto* found = find(heap, **names, heap.text(std::string(format.substr(1, end - 1))));
      if (found == nullptr) refuse("a format names a value that is not given");
      value = *found;
      by_name = true;
      format.remove_prefix(end + 1);
    }
    take_flags(format, spec);
    const auto number = [&](std::int64_t otherwise) {
      if (!format.starts_with('*')) return leading_number(format, otherwise);
      format.remove_prefix(1);
      return position(take(), "a width");
    };
    spec.width = number(0);
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (format.starts_with('.')) {
      format.remove_prefix(1);
      spec.precision = std::max<std::int64_t>(0, number(0));
    }
    while (!format.empty() && std::string_view("hlL").find(format.front()) != std::string_view::npos)
      format.remove_prefix(1);
    if (format.empty()) refuse("a format ends within a field");
    spec.type = format.front();
    format.remove_prefix(1);
    if (spec.type == '%') {
      out += '%';
      continue;
    }
    if (!value) value = take();
    out += percent_field(heap, spec, *value);
    heap.room(out.size());
  }
  const bool is_list = list != nullptr && ((*list)->shape == List::Shape::list || (*list)->shape == List::Shape::range);
  const bool is_mapping = is_plain_dict(values) || is_list || is_undefined(values);  // all that Python can index
  if (!by_name && next < all.size() && !is_mapping) refuse("a format has fewer fields than there are values");
  return out;
}

}  // namespace fsdp::jinja
