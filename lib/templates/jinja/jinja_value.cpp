#include "lib/templates/jinja/jinja_value.hpp"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lib/base/text/utf8.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"

namespace fsdp::jinja {
namespace {

constexpr int kMostLevels = 200;  ///< of lists within lists

/// Counts levels of nested values while it exists.
class Level {
 public:
  explicit Level(int& depth) : depth_(depth) {
    if (++depth_ > kMostLevels) {
      --depth_;
      refuse("a value is nested deeper than " + std::to_string(kMostLevels) + " levels");
    }
  }
  ~Level() { --depth_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  int& depth_;
};

std::string number_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  auto text = fmt::format("{}", number);
  if (text.find_first_of(".e") == text.npos) text += ".0";
  return text;
}

void append_quoted(std::string& out, std::string_view text) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  out += quote;
  for (const auto c : characters(text)) {
    const auto code = static_cast<std::uint32_t>(c);
    if (c == '\\' || c == static_cast<char32_t>(quote)) {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c)) {
      out += utf8_of(std::u32string_view(&c, 1));
    } else {
      out += code < 0x100     ? fmt::format("\\x{:02x}", code)
             : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                              : fmt::format("\\U{:08x}", code);
    }
  }
  out += quote;
}

void append_json_text(std::string& out, std::string_view text, bool only_ascii) {
  constexpr std::string_view kLetters = "\"\\\n\r\t\b\f", kEscapes = "\"\\nrtbf";
  out += '"';
  const auto escape = [&](std::uint32_t code) { out += fmt::format("\\u{:04x}", code); };
  for (const auto c : characters(text)) {
    const auto code = static_cast<std::uint32_t>(c);
    if (const auto at = code < 0x80 ? kLetters.find(static_cast<char>(code)) : kLetters.npos; at != kLetters.npos) {
      out += '\\';
      out += kEscapes[at];
    } else if (code < 0x20 || (only_ascii && code > 0x7e && code < 0x10000)) {
      escape(code);
    } else if (only_ascii && code >= 0x10000) {
      escape(0xd800 + ((code - 0x10000) >> 10));
      escape(0xdc00 + ((code - 0x10000) & 0x3ff));
    } else {
      out += utf8_of(std::u32string_view(&c, 1));
    }
  }
  out += '"';
}

/// Writes values as Python or JSON does.
class Writer {
 public:
  Writer(Heap& heap, std::string& out) : heap_(heap), out_(out) {}

  void represent(const Value& value) {
    const Level level(depth_);
    const auto start = out_.size();
    if (const auto* text = std::get_if<Text>(&value)) {
      append_quoted(out_, *text->bytes);
    } else if (const auto* list = std::get_if<List*>(&value)) {
      represent_list(**list);
    } else if (const auto* dict = std::get_if<Dict*>(&value)) {
      out_ += (*dict)->is_namespace ? "<Namespace {" : "{";
      all((*dict)->items, ", ", [&](const auto& item) {
        represent(item.first);
        out_ += ": ";
        represent(item.second);
      });
      out_ += (*dict)->is_namespace ? "}>" : "}";
    } else if (const auto* function = std::get_if<Function*>(&value)) {
      out_ += "<function " + (*function)->name + ">";
    } else {
      scalar(value, "None", "True", "False");
    }
    done(start);
  }

  void json(const Value& value, const JsonStyle& style) {
    const Level level(depth_);
    const auto start = out_.size();
    if (const auto* text = std::get_if<Text>(&value)) {
      append_json_text(out_, *text->bytes, style.only_ascii);
    } else if (const auto* list = std::get_if<List*>(&value); list != nullptr && (*list)->shape < List::Shape::range) {
      block('[', ']', (*list)->items, style, [&](const Value& item) { json(item, style); });
    } else if (const auto* dict = std::get_if<Dict*>(&value); dict != nullptr && !(*dict)->is_namespace) {
      auto items = (*dict)->items;
      if (style.sort_keys) {
        std::stable_sort(items.begin(), items.end(),
                         [&](const auto& a, const auto& b) { return less(heap_, a.first, b.first); });
      }
      block('{', '}', items, style, [&](const auto& item) {
        json_key(item.first, style);
        out_ += style.key_separator;
        json(item.second, style);
      });
    } else if (const auto* number = std::get_if<double>(&value); number != nullptr && !std::isfinite(*number)) {
      out_ += std::isnan(*number) ? "NaN" : *number < 0 ? "-Infinity" : "Infinity";
    } else if (value.index() == 0 || value.index() > 4) {
      refuse(std::string("a value of type ") + type_name(value) + " cannot be written as JSON");
    } else {
      scalar(value, "null", "true", "false");
    }
    done(start);
  }

 private:
  void done(std::size_t start) {
    heap_.pass(std::string_view(out_).substr(start));
    heap_.room(out_.size());
  }

  void scalar(const Value& value, const char* none, const char* yes, const char* no) {
    if (is<None>(value)) out_ += none;
    if (const auto* flag = std::get_if<bool>(&value)) out_ += *flag ? yes : no;
    if (const auto* integer = std::get_if<Integer>(&value)) out_ += fmt::format("{}", *integer);
    if (const auto* number = std::get_if<double>(&value)) out_ += number_text(*number);
    if (is<Undefined>(value)) out_ += "Undefined";
    if (is<Loop*>(value)) out_ += "<LoopContext>";
  }

  template <typename Items, typename Write>
  void all(const Items& items, const std::string& separator, Write write) {
    for (const auto& item : items) {
      if (&item != &items.front()) out_ += separator;
      write(item);
    }
  }

  template <typename Items, typename Write>
  void block(char open, char close, const Items& items, const JsonStyle& style, Write write) {
    out_ += open;
    const auto line = [&] {
      out_ += '\n';
      for (int i = 0; i < level_; ++i) out_ += *style.indent;
      heap_.room(out_.size());
    };
    ++level_;
    for (const auto& item : items) {
      if (&item != &items.front()) out_ += style.item_separator;
      if (style.indent) line();
      write(item);
    }
    --level_;
    if (style.indent && !items.empty()) line();
    out_ += close;
  }

  void json_key(const Value& key, const JsonStyle& style) {
    if (const auto* text = std::get_if<Text>(&key)) return append_json_text(out_, *text->bytes, style.only_ascii);
    if (key.index() == 0 || key.index() > 4) refuse("keys of JSON must be texts or numbers");
    out_ += '"';
    scalar(key, "null", "true", "false");
    out_ += '"';
  }

  void represent_list(const List& list) {
    constexpr std::array<const char*, 8> kBegins{
        "[", "(", "(", "range(", "dict_keys([", "dict_values([", "dict_items([", "<generator"};
    constexpr std::array<const char*, 8> kEnds{"]", ")", ")", ")", "])", "])", "])", ">"};
    const auto shape = to_index(list.shape);
    if (list.shape == List::Shape::iterator || list.shape == List::Shape::range)
      refuse("the result of a filter or of range() cannot be printed; make it a list first: | list");
    out_ += kBegins.at(shape);
    all(list.items, ", ", [&](const Value& item) { represent(item); });
    if (list.is_tuple() && list.items.size() == 1) out_ += ',';
    out_ += kEnds.at(shape);
  }

  Heap& heap_;
  std::string& out_;
  int depth_ = 0;
  int level_ = 0;
};

/// Compares values within values, counting levels.
class Comparison {
 public:
  explicit Comparison(Heap& heap) : heap_(heap) {}

  bool equal(const Value& a, const Value& b) {
    const Level level(depth_);
    heap_.step();
    for (const auto* value : {&a, &b}) heap_.use(*value);
    if (const auto x = as_integer(a), y = as_integer(b); x && y) return *x == *y;
    if (const auto x = as_double(a), y = as_double(b); x && y) return *x == *y;
    if (a.index() != b.index()) return false;
    if (const auto* text = std::get_if<Text>(&a)) {
      heap_.pass(*text->bytes);
      return *text->bytes == *std::get<Text>(b).bytes;
    }
    if (const auto* list = std::get_if<List*>(&a)) return equal_lists(**list, *std::get<List*>(b));
    if (const auto* dict = std::get_if<Dict*>(&a)) return equal_dicts(**dict, *std::get<Dict*>(b));
    if (const auto* function = std::get_if<Function*>(&a)) return *function == std::get<Function*>(b);
    if (const auto* loop = std::get_if<Loop*>(&a)) return *loop == std::get<Loop*>(b);
    return true;  // None, or both undefined
  }

  bool less(const Value& a, const Value& b) {
    const Level level(depth_);
    heap_.step();
    if (const auto x = as_integer(a), y = as_integer(b); x && y) return *x < *y;
    if (const auto x = as_double(a), y = as_double(b); x && y) return *x < *y;
    const auto *text = std::get_if<Text>(&a), *other = std::get_if<Text>(&b);
    if (text != nullptr && other != nullptr) {
      heap_.pass(*text->bytes);
      return *text->bytes < *other->bytes;  // the order of UTF-8 is that of code points
    }
    const auto *list = std::get_if<List*>(&a), *second = std::get_if<List*>(&b);
    if (list != nullptr && second != nullptr && (*list)->is_tuple() == (*second)->is_tuple() &&
        (*list)->shape < List::Shape::range && (*second)->shape < List::Shape::range) {
      const auto &x = (*list)->items, &y = (*second)->items;
      for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
        if (!equal(x[i], y[i])) return less(x[i], y[i]);
      }
      return x.size() < y.size();
    }
    if (const auto* missing = std::get_if<Undefined>(&a)) refuse(*missing);
    if (const auto* missing = std::get_if<Undefined>(&b)) refuse(*missing);
    refuse(std::string("values of types ") + type_name(a) + " and " + type_name(b) + " have no order");
  }

 private:
  bool equal_lists(const List& a, const List& b) {
    if (&a == &b) return true;
    if (a.is_tuple() != b.is_tuple() || a.items.size() != b.items.size()) return false;
    if (!a.is_tuple() && a.shape != b.shape) return false;
    if (!a.is_sequence() && a.shape != List::Shape::keys) return false;
    for (std::size_t i = 0; i < a.items.size(); ++i) {
      if (!equal(a.items[i], b.items[i])) return false;
    }
    return true;
  }

  bool equal_dicts(Dict& a, Dict& b) {
    if (&a == &b) return true;
    if (a.is_namespace || b.is_namespace || a.items.size() != b.items.size()) return false;
    for (const auto& [key, value] : a.items) {
      const auto* other = find(heap_, b, key);
      if (other == nullptr || !equal(value, *other)) return false;
    }
    return true;
  }

  Heap& heap_;
  int depth_ = 0;
};

Value whole(Integer value, bool overflow) {
  if (overflow) refuse("a number has more than 128 bits");
  return value;
}

Value integer_power(Integer base, Integer exponent) {
  if (exponent < 0) {
    if (base == 0) refuse("0 cannot be raised to a negative power");
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  if (base == 0 || base == 1) return exponent == 0 ? Integer{1} : base;
  if (base == -1) return exponent % 2 == 0 ? Integer{1} : base;
  Integer result = 1;
  bool overflow = exponent > 127;
  for (Integer i = 0; i < exponent && !overflow; ++i) overflow = __builtin_mul_overflow(result, base, &result);
  return whole(result, overflow);
}

/// The quotient, rounded once, as Python divides integers.
double quotient_of(Integer a, Integer b) {
  __extension__ using Whole = unsigned __int128;
  constexpr Whole kEnough = Whole{1} << 56;  // more bits than a double has, and one that says whether there is a rest
  const auto size = [](Integer number) {
    return number < 0 ? -static_cast<Whole>(number) : static_cast<Whole>(number);
  };
  const Whole divisor = size(b);
  Whole quotient = size(a) / divisor, rest = size(a) % divisor;
  int exponent = 0;
  for (; quotient < kEnough && rest != 0; --exponent) {
    const bool carries = rest >= divisor - rest;
    quotient = quotient << 1 | (carries ? 1 : 0);
    rest = carries ? rest - (divisor - rest) : rest << 1;
  }
  if (rest != 0) quotient |= 1;
  const double result = std::ldexp(static_cast<double>(quotient), exponent);
  return (a < 0) != (b < 0) ? -result : result;
}

Value calculate_integers(char operation, Integer a, Integer b) {
  Integer result = 0;
  bool overflow = false;
  switch (operation) {
    case '+':
      overflow = __builtin_add_overflow(a, b, &result);
      return whole(result, overflow);
    case '-':
      overflow = __builtin_sub_overflow(a, b, &result);
      return whole(result, overflow);
    case '*':
      overflow = __builtin_mul_overflow(a, b, &result);
      return whole(result, overflow);
    case 'p':
      return integer_power(a, b);
    default:
      break;
  }
  if (b == 0) refuse("division by zero");
  if (operation == '/') return quotient_of(a, b);
  if (b == -1) return operation == '%' ? Value(Integer{0}) : calculate_integers('-', 0, a);
  const Integer rest = a % b;
  const bool rounds_down = rest != 0 && (rest < 0) != (b < 0);
  if (operation == '%') return rounds_down ? rest + b : rest;
  return a / b - (rounds_down ? 1 : 0);
}

Value calculate_doubles(char operation, double a, double b) {
  switch (operation) {
    case '+':
      return a + b;
    case '-':
      return a - b;
    case '*':
      return a * b;
    case 'p': {
      if (a == 0 && b < 0) refuse("0 cannot be raised to a negative power");
      const double result = std::pow(a, b);
      if (std::isnan(result) && !std::isnan(a) && !std::isnan(b)) refuse("a power is no real number");
      if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) refuse("a power is too large");
      return result;
    }
    default:
      break;
  }
  if (b == 0) refuse("division by zero");
  if (operation == '/') return a / b;
  double rest = std::fmod(a, b), quotient = (a - rest) / b;
  if (rest != 0) {
    if ((b < 0) != (rest < 0)) {
      rest += b;
      quotient -= 1;
    }
  } else {
    rest = std::copysign(0.0, b);
  }
  if (operation == '%') return rest;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double down = std::floor(quotient);
  return quotient - down > 0.5 ? down + 1 : down;
}

Value repeat(Heap& heap, const Value& value, Integer count) {
  const auto times = static_cast<std::uint64_t>(std::clamp<Integer>(count, 0, Integer{1} << 40));
  if (const auto* text = std::get_if<Text>(&value)) {
    const auto& bytes = *text->bytes;
    if (bytes.empty()) return value;
    heap.room(times, bytes.size());
    std::string made;
    made.reserve(bytes.size() * times);
    for (std::uint64_t i = 0; i < times; ++i) made += bytes;
    return heap.text(std::move(made), text->is_escaped);
  }
  const auto& list = *std::get<List*>(value);
  if (list.items.empty()) return heap.list({}, list.is_tuple() ? List::Shape::tuple : List::Shape::list);
  heap.room(times, list.items.size() * sizeof(Value));
  std::vector<Value> items;
  for (std::uint64_t i = 0; i < times; ++i) items.insert(items.end(), list.items.begin(), list.items.end());
  return heap.list(std::move(items), list.is_tuple() ? List::Shape::tuple : List::Shape::list);
}

bool can_repeat(const Value& value) {
  const auto* list = std::get_if<List*>(&value);
  return is<Text>(value) || (list != nullptr && (*list)->shape < List::Shape::range);
}

/// The whole number of these digits, as PythonJson keeps one beyond 64 bits.
Integer integer_of(const std::vector<std::uint8_t>& text) {
  const bool negative = text.front() == '-';
  Integer value = 0;
  for (auto i = text.begin() + (negative ? 1 : 0); i != text.end(); ++i) {
    const Integer digit = *i - '0';
    if (__builtin_mul_overflow(value, Integer{10}, &value) ||
        __builtin_add_overflow(value, negative ? -digit : digit, &value))
      refuse("the number " + std::string(text.begin(), text.end()).substr(0, 50) + " has more than 128 bits");
  }
  return value;
}

Value add_texts(Heap& heap, const Text& a, const Text& b) {
  const bool escaped = a.is_escaped || b.is_escaped;
  const auto part = [&](const Text& text) {
    return escaped && !text.is_escaped ? escape_html(*text.bytes) : *text.bytes;
  };
  auto sum = heap.text(part(a) + part(b));
  sum.is_escaped = escaped;
  return sum;
}

}  // namespace

void Heap::step(std::uint64_t count) {
  steps_ += count;
  if (steps_ > limits_.steps) refuse("it takes more than " + std::to_string(limits_.steps) + " steps");
}

void Heap::room(std::uint64_t count, std::uint64_t each) const {
  // Templates choose counts of any size, whose product may not fit 64 bits.
  if (bytes_ > limits_.bytes || (each > 0 && count > (limits_.bytes - bytes_) / each))
    refuse("it makes more than " + std::to_string(limits_.bytes) + " bytes of texts and lists");
}

void Heap::count(std::uint64_t bytes) {
  room(bytes);
  bytes_ += bytes;
}

Text Heap::text(std::string bytes, bool is_escaped) {
  count(bytes.size() + sizeof(std::string));
  pass(bytes);
  return {&texts_.emplace_back(std::move(bytes)), is_escaped};
}

List* Heap::list(std::vector<Value> items, List::Shape shape) {
  count((items.size() + 1) * sizeof(Value));
  step(1 + items.size());
  return &lists_.emplace_back(List{std::move(items), shape});
}

Dict* Heap::dict(std::vector<std::pair<Value, Value>> items) {
  count((2 * items.size() + 1) * sizeof(Value));
  step(1 + items.size());
  return &dicts_.emplace_back(Dict{std::move(items)});
}

Function* Heap::function(std::string name, std::function<Value(const Arguments&)> call) {
  count(sizeof(Function));
  return &functions_.emplace_back(Function{std::move(name), std::move(call)});
}

void refuse(const std::string& problem) { throw FormatError(problem); }

void refuse(const Undefined& value) {
  const auto name = value.name == nullptr ? std::string("a value") : "'" + *value.name + "'";
  if (value.owner != nullptr) refuse(name + " is nothing that a value of type " + value.owner + " has, or lets change");
  refuse(name + " is undefined");
}

const char* type_name(const Value& value) {
  constexpr std::array<const char*, 10> kNames{"Undefined", "None", "bool", "int",      "float",
                                               "str",       "list", "dict", "function", "LoopContext"};
  if (const auto* list = std::get_if<List*>(&value)) {
    constexpr std::array<const char*, 8> kShapes{"list",      "tuple",       "tuple",      "range",
                                                 "dict_keys", "dict_values", "dict_items", "generator"};
    return kShapes.at(to_index((*list)->shape));
  }
  return kNames.at(value.index());
}

Value from_json(Heap& heap, const nlohmann::ordered_json& json) {
  if (json.is_null()) return None{};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned()) return Integer{json.get<std::uint64_t>()};
  if (json.is_number_integer()) return Integer{json.get<std::int64_t>()};
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return heap.text(json.get<std::string>());
  if (json.is_binary()) return integer_of(json.get_binary());
  if (json.is_array()) {
    std::vector<Value> items;
    items.reserve(json.size());
    for (const auto& item : json) items.push_back(from_json(heap, item));
    return heap.list(std::move(items));
  }
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [key, value] : json.items()) items.emplace_back(heap.text(key), from_json(heap, value));
  return heap.dict(std::move(items));
}

bool truth(Heap& heap, const Value& value) {
  heap.step();
  heap.use(value);
  if (const auto* text = std::get_if<Text>(&value)) return !text->bytes->empty();
  if (const auto* list = std::get_if<List*>(&value))
    return (*list)->shape == List::Shape::iterator || !(*list)->items.empty();
  if (const auto* dict = std::get_if<Dict*>(&value)) return (*dict)->is_namespace || !(*dict)->items.empty();
  if (const auto number = as_double(value)) return *number != 0;
  return is<Function*>(value) || is<Loop*>(value);
}

std::string print(Heap& heap, const Value& value) {
  heap.use(value);
  if (is<Undefined>(value)) return "";
  if (const auto* text = std::get_if<Text>(&value)) {
    heap.pass(*text->bytes);
    return *text->bytes;
  }
  return represent(heap, value);
}

std::string represent(Heap& heap, const Value& value) {
  std::string out;
  Writer(heap, out).represent(value);
  return out;
}

std::string to_json(Heap& heap, const Value& value, const JsonStyle& style) {
  std::string out;
  Writer(heap, out).json(value, style);
  return out;
}

bool equal(Heap& heap, const Value& a, const Value& b) { return Comparison(heap).equal(a, b); }
bool less(Heap& heap, const Value& a, const Value& b) { return Comparison(heap).less(a, b); }

bool can_be_key(const Value& value) {
  const auto* list = std::get_if<List*>(&value);
  return !is<Dict*>(value) && (list == nullptr || (*list)->is_tuple());
}

Value* find(Heap& heap, Dict& dict, const Value& key) {
  if (!can_be_key(key)) refuse(std::string("a value of type ") + type_name(key) + " cannot be a key");
  const auto* name = std::get_if<Text>(&key);
  for (auto& [known, value] : dict.items) {
    heap.step();
    const auto* text = name != nullptr ? std::get_if<Text>(&known) : nullptr;
    const bool can_be_equal = text != nullptr ? text->bytes->size() == name->bytes->size() : name == nullptr;
    if (can_be_equal && equal(heap, known, key)) return &value;
  }
  return nullptr;
}

void put(Heap& heap, Dict& dict, const Value& key, const Value& value) {
  if (auto* known = find(heap, dict, key)) {
    *known = value;
    return;
  }
  heap.count(2 * sizeof(Value));
  dict.items.emplace_back(key, value);
}

std::vector<Value> elements(Heap& heap, const Value& value) {
  heap.use(value);
  std::vector<Value> items;
  if (const auto* list = std::get_if<List*>(&value)) {
    items = (*list)->items;
    if ((*list)->shape == List::Shape::iterator) (*list)->items.clear();
  } else if (const auto* dict = std::get_if<Dict*>(&value); dict != nullptr && !(*dict)->is_namespace) {
    for (const auto& [key, element] : (*dict)->items) items.push_back(key);
  } else if (const auto* text = std::get_if<Text>(&value)) {
    for (const auto c : characters(*text->bytes)) items.emplace_back(heap.text(utf8_of(std::u32string_view(&c, 1))));
  } else if (!is<Undefined>(value)) {
    refuse(std::string("a value of type ") + type_name(value) + " has no elements");
  }
  heap.step(1 + items.size());
  heap.room(items.size() * sizeof(Value));
  return items;
}

Value calculate(Heap& heap, char operation, const Value& a, const Value& b) {
  heap.step();
  if (operation == '%' && is<Text>(a)) return heap.text(format_percent(heap, format_of(a), b));
  for (const auto* value : {&a, &b}) {
    if (const auto* missing = std::get_if<Undefined>(value)) refuse(*missing);
  }
  const auto *text = std::get_if<Text>(&a), *other = std::get_if<Text>(&b);
  if (const auto x = as_integer(a), y = as_integer(b); x && y) return calculate_integers(operation, *x, *y);
  if (const auto x = as_double(a), y = as_double(b); x && y) return calculate_doubles(operation, *x, *y);
  if (operation == '+' && text != nullptr && other != nullptr) return add_texts(heap, *text, *other);
  if (operation == '*' && can_repeat(a) && as_integer(b)) return repeat(heap, a, *as_integer(b));
  if (operation == '*' && can_repeat(b) && as_integer(a)) return repeat(heap, b, *as_integer(a));
  const auto *list = std::get_if<List*>(&a), *second = std::get_if<List*>(&b);
  if (operation == '+' && list != nullptr && second != nullptr && (*list)->is_tuple() == (*second)->is_tuple() &&
      (*list)->shape < List::Shape::range && (*second)->shape < List::Shape::range) {
    auto items = (*list)->items;
    items.insert(items.end(), (*second)->items.begin(), (*second)->items.end());
    return heap.list(std::move(items), (*list)->is_tuple() ? List::Shape::tuple : List::Shape::list);
  }
  const std::string sign = operation == 'f' ? "//" : operation == 'p' ? "**" : std::string(1, operation);
  refuse(sign + " cannot join values of types " + type_name(a) + " and " + type_name(b));
}

std::optional<double> as_double(const Value& value) {
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto integer = as_integer(value)) return static_cast<double>(*integer);
  return {};
}

std::optional<Integer> as_integer(const Value& value) {
  if (const auto* integer = std::get_if<Integer>(&value)) return *integer;
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? 1 : 0;
  return {};
}

std::int64_t position(const Value& value, const char* what) {
  constexpr Integer most = Integer{1} << 62;
  if (const auto integer = as_integer(value)) return static_cast<std::int64_t>(std::clamp(*integer, -most, most));
  if (const auto* missing = std::get_if<Undefined>(&value)) refuse(*missing);
  refuse(std::string(what) + " is of type " + type_name(value) + ", expected a whole number");
}

const std::string& bytes_of(const Value& value, const char* what) {
  if (const auto* text = std::get_if<Text>(&value)) return *text->bytes;
  if (const auto* missing = std::get_if<Undefined>(&value)) refuse(*missing);
  refuse(std::string(what) + " is of type " + type_name(value) + ", expected a text");
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const char* entity = c == '&'    ? "&amp;"
                         : c == '<'  ? "&lt;"
                         : c == '>'  ? "&gt;"
                         : c == '"'  ? "&#34;"
                         : c == '\'' ? "&#39;"
                                     : nullptr;
    if (entity != nullptr) {
      out += entity;
    } else {
      out += c;
    }
  }
  return out;
}

bool is_decimal(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_ND; }

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category != UTF8PROC_CATEGORY_CN && (category < UTF8PROC_CATEGORY_ZS || category > UTF8PROC_CATEGORY_CO);
}

std::u32string characters(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  while (!text.empty()) {
    utf8proc_int32_t c = 0;
    const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                         static_cast<utf8proc_ssize_t>(text.size()), &c);
    if (length < 1) refuse("a text is no UTF-8");
    out += static_cast<char32_t>(c);
    text.remove_prefix(static_cast<std::size_t>(length));
  }
  return out;
}

std::string utf8_of(std::u32string_view characters) {
  std::string out;
  out.reserve(characters.size());
  for (const auto c : characters) {
    std::array<utf8proc_uint8_t, 4> bytes{};
    const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes.data());
    if (length < 1 || (c >= 0xd800 && c < 0xe000)) refuse("a text holds half a character");
    out.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(length));
  }
  return out;
}

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<std::uint8_t>(c) & 0xc0) != 0x80; }));
}

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

std::string_view strip(std::string_view text, bool left, bool right) {
  const auto start_of_last = [&] {
    auto at = text.size() - 1;
    while (at > 0 && (static_cast<std::uint8_t>(text[at]) & 0xc0) == 0x80) --at;
    return at;
  };
  while (left && !text.empty()) {
    const auto length = utf8_character_length(text);
    if (length == 0 || !is_space(characters(text.substr(0, length)).front())) break;
    text.remove_prefix(length);
  }
  while (right && !text.empty()) {
    const auto last = text.substr(start_of_last());
    if (utf8_character_length(last) != last.size() || !is_space(characters(last).front())) break;
    text.remove_suffix(last.size());
  }
  return text;
}

}  // namespace fsdp::jinja
