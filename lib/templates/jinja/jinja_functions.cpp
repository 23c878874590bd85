#include "lib/templates/jinja/jinja_functions.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <utility>

#include "lib/base/types/index.hpp"
#include "lib/templates/jinja/python_regex.hpp"

namespace fsdp::jinja {
namespace {

using Call = BuiltinCall;

bool is_escaped(const Value& value) { return is<Text>(value) && std::get<Text>(value).is_escaped; }

/// A text, or the texts of a list, escaped; other values as they are.
Value with_escape(Heap& heap, const Value& value) {
  if (is<Text>(value)) return is_escaped(value) ? value : heap.text(escape_html(*std::get<Text>(value).bytes), true);
  if (!is<List*>(value)) return value;
  auto items = elements(heap, value);
  for (auto& item : items) item = with_escape(heap, item);
  return heap.list(std::move(items));
}

/// The same texts, said to be escaped.
Value as_escaped(Value value) {
  if (auto* text = std::get_if<Text>(&value)) text->is_escaped = true;
  if (auto* list = std::get_if<List*>(&value)) {
    for (auto& item : (*list)->items) item = as_escaped(item);
  }
  return value;
}

Value run(Context& context, const Builtin& builtin, const Value& input, const Arguments& arguments, const char* kind) {
  const auto fail = [&](const std::string& problem) {
    refuse(std::string(kind) + " '" + builtin.name + "' " + problem);
  };
  Call call{context, input, arguments, std::vector<std::optional<Value>>(builtin.parameters.size())};
  if (arguments.positional.size() > builtin.parameters.size() && !builtin.is_open) fail("has too many arguments");
  for (std::size_t i = 0; i < std::min(arguments.positional.size(), call.values.size()); ++i)
    call.values[i] = arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(builtin.parameters.begin(), builtin.parameters.end(), name);
    if (found == builtin.parameters.end()) {
      if (!builtin.is_open) fail("has no argument '" + name + "'");
      continue;
    }
    auto& place = element(call.values, found - builtin.parameters.begin());
    if (place) fail("has the argument '" + name + "' twice");
    place = value;
  }
  for (std::size_t i = 0; i < builtin.required; ++i) {
    if (!call.values[i]) fail(std::string("needs the argument '") + builtin.parameters[i] + "'");
  }
  // A call costs the texts that it reads, and its arguments. Lists are counted where their elements are taken.
  const auto count = [&](const Value& value) {
    if (const auto* text = std::get_if<Text>(&value)) context.heap.pass(*text->bytes);
  };
  context.heap.step(1 + (arguments.positional.size() + arguments.named.size()) / 16);
  count(input);
  for (const auto& value : call.values) {
    if (value) count(*value);
  }
  if (!is_escaped(input) || !builtin.escapes) return builtin.call(call);
  if (*builtin.escapes >= 0) {
    auto& value = element(call.values, *builtin.escapes);
    if (value) value = with_escape(context.heap, *value);
  }
  return as_escaped(builtin.call(call));
}

const Builtin* find_in(std::span<const Builtin> builtins, std::string_view name) {
  for (const auto& builtin : builtins) {
    if (builtin.name == name) return &builtin;
  }
  return nullptr;
}

Value view(Call& call, bool of_keys) {
  std::vector<Value> items;
  for (const auto& [key, value] : std::get<Dict*>(call.input)->items) items.push_back(of_keys ? key : value);
  return call.list(std::move(items), of_keys ? List::Shape::keys : List::Shape::values);
}

const std::vector<Builtin>& dict_methods() {
  static const std::vector<Builtin> all{
      {"copy", {}, 0, [](Call& c) -> Value { return c.heap().dict(std::get<Dict*>(c.input)->items); }},
      {"get",
       {"key", "default"},
       1,
       [](Call& c) {
         const auto* found = find(c.heap(), *std::get<Dict*>(c.input), c.value(0));
         return found != nullptr ? *found : c.values[1] ? c.value(1) : Value(None{});
       }},
      {"items", {}, 0, items_of},
      {"keys", {}, 0, [](Call& c) { return view(c, true); }},
      {"values", {}, 0, [](Call& c) { return view(c, false); }},
  };
  return all;
}

const std::vector<Builtin>& list_methods() {
  static const std::vector<Builtin> all{
      {"copy",
       {},
       0,
       [](Call& c) {
         const auto& list = *std::get<List*>(c.input);
         if (list.shape != List::Shape::list) refuse("only lists and dictionaries have copy()");
         return c.list(list.items);
       }},
      {"count",
       {"value"},
       1,
       [](Call& c) -> Value {
         Integer count = 0;
         for (const auto& item : std::get<List*>(c.input)->items) count += equal(c.heap(), item, c.value(0)) ? 1 : 0;
         return count;
       }},
      {"index",
       {"value"},
       1,
       [](Call& c) -> Value {
         const auto& items = std::get<List*>(c.input)->items;
         for (std::size_t i = 0; i < items.size(); ++i) {
           if (equal(c.heap(), items[i], c.value(0))) return Integer{i};
         }
         refuse("an element that index() looks for is not there");
       }},
  };
  return all;
}

const std::vector<Builtin>& integer_methods() {
  static const std::vector<Builtin> all{
      {"bit_length",
       {},
       0,
       [](Call& c) -> Value {
         Integer bits = 0;
         for (auto number = *as_integer(c.input); number != 0; number /= 2) ++bits;
         return bits;
       }},
  };
  return all;
}

const std::vector<Builtin>& float_methods() {
  static const std::vector<Builtin> all{
      {"is_integer",
       {},
       0,
       [](Call& c) -> Value {
         const auto number = std::get<double>(c.input);
         return std::isfinite(number) && std::trunc(number) == number;
       }},
  };
  return all;
}

std::span<const Builtin> methods_of(const Value& value) {
  if (is<Text>(value)) return text_methods();
  if (is_plain_dict(value)) return dict_methods();
  if (is<List*>(value) && std::get<List*>(value)->is_sequence()) return list_methods();
  if (as_integer(value)) return integer_methods();
  if (is<double>(value)) return float_methods();
  return {};
}

/// True for methods that would change a list or a dictionary; the template gets nothing in their place.
bool changes(const Value& value, std::string_view name) {
  constexpr std::array<std::string_view, 8> kList{"append", "clear",  "extend",  "insert",
                                                  "pop",    "remove", "reverse", "sort"};
  constexpr std::array<std::string_view, 5> kDict{"clear", "pop", "popitem", "setdefault", "update"};
  if (is_plain_dict(value)) return std::find(kDict.begin(), kDict.end(), name) != kDict.end();
  return is<List*>(value) && std::find(kList.begin(), kList.end(), name) != kList.end();
}

std::optional<Value> element_of(Context& context, const Value& object, const Value& key) {
  if (auto* const* dict = std::get_if<Dict*>(&object)) {
    if (!can_be_key(key)) return {};
    const auto* found = find(context.heap, **dict, key);
    return found != nullptr ? std::optional(*found) : std::nullopt;
  }
  const auto index = as_integer(key);
  if (!index) return {};
  const auto at = [&](std::size_t size) -> std::optional<std::size_t> {
    const auto i = *index < 0 ? *index + Integer{size} : *index;
    return i >= 0 && i < Integer{size} ? std::optional(static_cast<std::size_t>(i)) : std::nullopt;
  };
  if (const auto* list = std::get_if<List*>(&object); list != nullptr && (*list)->is_sequence()) {
    const auto i = at((*list)->items.size());
    return i ? std::optional((*list)->items[*i]) : std::nullopt;
  }
  if (const auto* text = std::get_if<Text>(&object)) {
    context.heap.pass(*text->bytes);
    const auto i = at(count_characters(*text->bytes));
    if (i) return context.heap.text(utf8_of(characters(*text->bytes).substr(*i, 1)), text->is_escaped);
  }
  return {};
}

Value make_range(Call& call) {
  std::vector<std::int64_t> bounds;
  for (const auto& value : call.all.positional) bounds.push_back(position(value, "a bound of range()"));
  if (bounds.empty() || bounds.size() > 3 || !call.all.named.empty()) refuse("range() takes one to three numbers");
  const auto first = bounds.size() > 1 ? bounds[0] : 0, last = bounds.size() > 1 ? bounds[1] : bounds[0];
  const auto step = bounds.size() > 2 ? bounds[2] : 1;
  if (step == 0) refuse("range() has a step of 0");
  constexpr std::size_t most = 100'000;  // as Jinja's sandbox
  std::vector<Value> items;
  for (Integer i = first; step > 0 ? i < last : i > last; i += step) {
    if (items.size() == most) refuse("range() has more than 100000 numbers");
    items.emplace_back(i);
  }
  return call.list(std::move(items), List::Shape::range);
}

Value make_dict(Call& call, bool is_namespace) {
  auto& made = *call.heap().dict();
  made.is_namespace = is_namespace;
  const auto add = [&](const Value& key, const Value& value) {
    const auto* name = std::get_if<Text>(&key);
    if (is_namespace && name != nullptr && name->bytes->starts_with('_'))
      refuse("a namespace has the attribute '" + *name->bytes + "'; names with _ in front are private");
    put(call.heap(), made, key, value);
  };
  if (call.all.positional.size() > 1) refuse("a dictionary is made of one other at most");
  if (!call.all.positional.empty()) {
    const auto& from = call.all.positional.front();
    if (const auto* missing = std::get_if<Undefined>(&from)) refuse(*missing);
    if (is_plain_dict(from)) {
      for (const auto& [key, value] : std::get<Dict*>(from)->items) add(key, value);
    } else {
      for (const auto& pair : elements(call.heap(), from)) {
        const auto both = elements(call.heap(), pair);
        if (both.size() != 2) refuse("a dictionary is made of pairs");
        add(both[0], both[1]);
      }
    }
  }
  for (const auto& [name, value] : call.all.named) add(call.heap().text(name), value);
  return &made;
}

Value regex_replaced(Call& call) {
  const auto text = print(call.heap(), call.input);
  call.heap().pass(text);
  const PythonRegex pattern(bytes_of(call.value(0), "a pattern"), "the pattern of regex_replace");
  return call.made(pattern.replace(text, bytes_of(call.value(1), "a replacement"), call.integer(2, 0)));
}

Value dict_from_keys(Call& call) {
  auto& made = *call.heap().dict();
  for (const auto& key : elements(call.heap(), call.value(0)))
    put(call.heap(), made, key, call.values[1] ? call.value(1) : Value(None{}));
  return &made;
}

Value time_text(Call& call) {
  const auto format = bytes_of(call.value(0), "the format of strftime_now()");
  std::string out;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    // A directive is one letter, with at most one flag of the C library before it.
    std::string directive = "%";
    if (i + 2 < format.size() && std::string_view("-_0^#").find(format[i + 1]) != std::string_view::npos)
      directive += format[++i];
    if (i + 1 < format.size()) directive += format[++i];
    constexpr std::string_view kLetters = "aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZ%";
    std::array<char, 128> text{};
    const bool known = directive.size() > 1 && kLetters.find(directive.back()) != kLetters.npos;
    out += known
               ? std::string(text.data(), std::strftime(text.data(), text.size(), directive.c_str(), &call.context.now))
               : directive;
  }
  return call.made(std::move(out));
}

/// Jinja's cycler: next(), reset() and current.
Value make_cycler(Call& call) {
  auto items = call.all.positional;
  if (items.empty() || !call.all.named.empty()) refuse("cycler() takes values, at least one");
  auto& heap = call.heap();
  auto* cycler = heap.function("cycler", [](const Arguments&) -> Value { refuse("a cycler is called"); });
  const auto* all = heap.list(std::move(items));
  const auto go_to = [cycler, all](std::size_t place) {
    return std::exchange(cycler->members.front().second, all->items[place % all->items.size()]);
  };
  const auto at = std::make_shared<std::size_t>(0);
  auto* next = heap.function("next", [go_to, at](const Arguments&) { return go_to(++*at); });
  auto* reset = heap.function("reset", [go_to, at](const Arguments&) -> Value {
    go_to(*at = 0);
    return None{};
  });
  cycler->members = {{"current", all->items.front()}, {"next", next}, {"reset", reset}};
  return cycler;
}

/// Jinja's joiner: nothing when called for the first time, then the separator.
Value make_joiner(Call& call) {
  const auto separator = call.values[0] ? call.value(0) : call.made(", ");
  const auto nothing = call.made("");
  return call.heap().function("joiner", [separator, nothing, is_first = true](const Arguments&) mutable {
    return std::exchange(is_first, false) ? nothing : separator;
  });
}

const std::vector<Builtin>& globals() {
  static const std::vector<Builtin> all{
      {"cycler", {}, 0, make_cycler, true},
      {"dict", {}, 0, [](Call& c) { return make_dict(c, false); }, true},
      {"joiner", {"sep"}, 0, make_joiner},
      {"lipsum", {}, 0, [](Call&) -> Value { refuse("lipsum() writes another text each time"); }, true},
      {"namespace", {}, 0, [](Call& c) { return make_dict(c, true); }, true},
      {"raise_exception",
       {"message"},
       1,
       [](Call& c) -> Value { refuse("the template refuses it: " + print(c.heap(), c.value(0))); }},
      {"range", {}, 0, make_range, true},
      {"strftime_now", {"format"}, 1, time_text},
  };
  return all;
}
}  // namespace

std::optional<Value> method_of(Context& context, const Value& object, const std::string& name) {
  const auto* builtin = find_in(methods_of(object), name);
  if (builtin == nullptr) return {};
  return context.heap.function(name, [&context, builtin, object](const Arguments& arguments) {
    return run(context, *builtin, object, arguments, "method");
  });
}

const Builtin* find_filter(std::string_view name) {
  const auto* found = find_in(text_filters(), name);
  return found != nullptr ? found : find_in(value_filters(), name);
}

const Builtin* find_test(std::string_view name) {
  const auto* found = find_in(text_tests(), name);
  return found != nullptr ? found : find_in(value_tests(), name);
}

const Builtin* find_strict_filter(std::string_view name) {
  static const std::vector<Builtin> kRows{{"regex_replace", {"pattern", "repl", "count"}, 2, regex_replaced}};
  return find_in(kRows, name);
}

Value apply(Context& context, const Builtin& builtin, const Value& input, const Arguments& arguments) {
  return run(context, builtin, input, arguments, find_test(builtin.name) == &builtin ? "test" : "filter");
}

Value member_of(Context& context, const Value& object, const std::string& name) {
  context.heap.step();
  if (const auto* missing = std::get_if<Undefined>(&object)) refuse(*missing);
  const Undefined nothing{&name, type_name(object)};
  if (auto* const* loop = std::get_if<Loop*>(&object)) return (*loop)->member(name);
  if (const auto method = method_of(context, object, name)) return *method;
  if (changes(object, name) || name.starts_with("__")) return nothing;
  if (const auto* function = std::get_if<Function*>(&object)) {
    if (name == "name") return context.heap.text((*function)->name);
    for (const auto& [known, value] : (*function)->members) {
      if (known == name) return value;
    }
  }
  if (const auto* list = std::get_if<List*>(&object); list != nullptr && (*list)->shape == List::Shape::group) {
    if (name == "grouper") return (*list)->items[0];
    if (name == "list") return (*list)->items[1];
  }
  if (!is<Dict*>(object)) return nothing;
  return element_of(context, object, Text{&name}).value_or(nothing);
}

Value item_of(Context& context, const Value& object, const Value& key) {
  context.heap.step();
  if (const auto* missing = std::get_if<Undefined>(&object)) refuse(*missing);
  if (const auto element = element_of(context, object, key)) return *element;
  if (const auto* name = std::get_if<Text>(&key)) return member_of(context, object, *name->bytes);
  return Undefined{context.heap.text(print(context.heap, key)).bytes, type_name(object)};
}

Value slice_of(Context& context, const Value& object, const Value& first, const Value& last, const Value& step) {
  const auto* list = std::get_if<List*>(&object);
  const auto* text = std::get_if<Text>(&object);
  if (const auto* missing = std::get_if<Undefined>(&object)) refuse(*missing);
  if (text == nullptr && (list == nullptr || !(*list)->is_sequence()))
    refuse(std::string("a value of type ") + type_name(object) + " has no slices");
  if (text != nullptr) context.heap.pass(*text->bytes);
  const auto all = text != nullptr ? characters(*text->bytes) : std::u32string();
  const auto size = static_cast<std::int64_t>(text != nullptr ? all.size() : (*list)->items.size());
  const auto by = is<None>(step) ? 1 : position(step, "the step of a slice");
  if (by == 0) refuse("a slice has a step of 0");
  const auto bound = [&](const Value& value, std::int64_t otherwise) {
    if (is<None>(value)) return otherwise;
    const auto at = position(value, "a bound of a slice");
    return std::clamp<std::int64_t>(at < 0 ? at + size : at, by < 0 ? -1 : 0, by < 0 ? size - 1 : size);
  };
  const auto begin = bound(first, by < 0 ? size - 1 : 0), end = bound(last, by < 0 ? -1 : size);
  std::vector<Value> items;
  std::u32string characters_;
  for (auto i = begin; by > 0 ? i < end : i > end; i += std::clamp<std::int64_t>(by, -size - 1, size + 1)) {
    const auto at = to_index(i);
    if (text != nullptr) {
      characters_ += all[at];
    } else {
      items.push_back((*list)->items[at]);
    }
  }
  if (text != nullptr) return context.heap.text(utf8_of(characters_), text->is_escaped);
  return context.heap.list(std::move(items), (*list)->is_tuple() ? List::Shape::tuple : (*list)->shape);
}

bool contains(Context& context, const Value& container, const Value& element) {
  if (const auto* text = std::get_if<Text>(&container)) {
    const auto& wanted = bytes_of(element, "the left side of 'in'");
    context.heap.search(*text->bytes, wanted);
    return text->bytes->find(wanted) != std::string::npos;
  }
  if (auto* const* dict = std::get_if<Dict*>(&container); dict != nullptr && !(*dict)->is_namespace)
    return find(context.heap, **dict, element) != nullptr;
  const auto items = elements(context.heap, container);
  return std::any_of(items.begin(), items.end(), [&](const Value& item) { return equal(context.heap, item, element); });
}

Value call(const Value& function, const Arguments& arguments) {
  if (auto* const* known = std::get_if<Function*>(&function)) return (*known)->call(arguments);
  if (auto* const* loop = std::get_if<Loop*>(&function)) return (*loop)->call(arguments);
  if (const auto* missing = std::get_if<Undefined>(&function)) refuse(*missing);
  refuse(std::string("a value of type ") + type_name(function) + " is called");
}

std::vector<std::pair<std::string, Value>> global_functions(Context& context) {
  std::vector<std::pair<std::string, Value>> all;
  const auto made = [&](const Builtin& builtin) {
    return context.heap.function(builtin.name, [&context, &builtin](const Arguments& arguments) {
      return run(context, builtin, None{}, arguments, "function");
    });
  };
  for (const auto& builtin : globals()) {
    auto* function = made(builtin);
    static const Builtin kFromKeys{"fromkeys", {"iterable", "value"}, 1, dict_from_keys};
    if (function->name == "dict") function->members.emplace_back(kFromKeys.name, made(kFromKeys));
    all.emplace_back(builtin.name, function);
  }
  return all;
}

}  // namespace fsdp::jinja
