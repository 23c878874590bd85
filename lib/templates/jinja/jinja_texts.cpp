// Filters, tests and methods of texts. Long because these three share most functions.
#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "lib/base/types/index.hpp"
#include "lib/templates/jinja/jinja_case.hpp"
#include "lib/templates/jinja/jinja_functions.hpp"

namespace fsdp::jinja {
namespace {

using Call = BuiltinCall;

// Characters

utf8proc_category_t category_of(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }
bool is_letter(char32_t c) {
  const auto category = category_of(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool is_digit(char32_t c) {
  return is_decimal(c) || c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079) ||
         (c >= 0x2080 && c <= 0x2089);
}
bool is_numeric(char32_t c) {
  const auto category = category_of(c);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}
bool is_word(char32_t c) { return c == '_' || is_letter(c) || is_numeric(c); }

/// The text that a filter gets, of any value.
std::string soft_text(const Call& call) { return print(call.heap(), call.input); }

// Texts

Value each_character(Call& call, bool (*is_so)(char32_t)) {
  const auto text = characters(bytes_of(call.input, "it"));
  return !text.empty() && std::all_of(text.begin(), text.end(), is_so);
}

/// True when cased characters are all `wanted`, and some character is.
Value has_case(const std::string& bytes, bool (*wanted)(char32_t), bool (*unwanted)(char32_t)) {
  const auto text = characters(bytes);
  const auto is_other = [&](char32_t c) { return unwanted(c) || is_title(c); };
  return std::any_of(text.begin(), text.end(), wanted) && std::none_of(text.begin(), text.end(), is_other);
}

/// str.istitle()
bool is_titled(const std::u32string& text) {
  bool inside = false, any = false;
  for (const auto c : text) {
    const bool begins = is_upper(c) || is_title(c);
    if (begins ? inside : (is_lower(c) && !inside)) return false;
    inside = begins || is_lower(c);
    any = any || inside;
  }
  return any;
}

/// Strips white space, or the characters of an argument.
Value stripped(Call& call, const std::string& bytes, bool left, bool right) {
  if (!call.has(0)) return call.made(std::string(strip(bytes, left, right)));
  const auto& signs = bytes_of(call.value(0), "an argument");
  call.heap().search(bytes, signs);
  const auto unwanted = characters(signs);
  const auto text = characters(bytes);
  std::u32string_view rest = text;
  while (left && !rest.empty() && unwanted.find(rest.front()) != unwanted.npos) rest.remove_prefix(1);
  while (right && !rest.empty() && unwanted.find(rest.back()) != unwanted.npos) rest.remove_suffix(1);
  return call.made(utf8_of(rest));
}

Value replaced(Call& call, const std::string& text, const std::string& old, const std::string& with,
               std::int64_t count) {
  const auto most = count < 0 ? std::string::npos : static_cast<std::size_t>(count);
  call.heap().search(text, old);
  std::string out;
  std::size_t done = 0, at = 0;
  const auto add = [&](std::string_view part) {
    call.heap().room(out.size() + part.size());
    out += part;
  };
  while (done < most && at <= text.size()) {
    const auto found = old.empty() ? at : text.find(old, at);
    if (found == text.npos) break;
    add(std::string_view(text).substr(at, found - at));
    add(with);
    ++done;
    at = found + old.size();
    if (!old.empty()) continue;
    if (at == text.size()) return call.made(std::move(out));
    // Between the characters.
    auto next = at + 1;
    while (next < text.size() && (static_cast<std::uint8_t>(text[next]) & 0xc0) == 0x80) ++next;
    add(std::string_view(text).substr(at, next - at));
    at = next;
  }
  add(std::string_view(text).substr(std::min(at, text.size())));
  return call.made(std::move(out));
}

Value texts(Call& call, const std::vector<std::string_view>& parts, List::Shape shape = List::Shape::list) {
  std::vector<Value> items;
  for (const auto part : parts) items.emplace_back(call.heap().text(std::string(part)));
  return call.list(std::move(items), shape);
}

/// split() and rsplit() at white space.
std::vector<std::string_view> words(std::string_view text, std::size_t most, bool from_right) {
  std::vector<std::string_view> parts;
  text = strip(text, !from_right, from_right);
  const auto ends_word = [](std::string_view rest) { return strip(rest, true, false).size() < rest.size(); };
  while (!text.empty() && parts.size() < most) {
    std::size_t at = from_right ? text.size() : 0;
    if (from_right) {
      while (at > 0 && strip(text.substr(0, at), false, true).size() == at) --at;
      parts.push_back(text.substr(at));
      text = strip(text.substr(0, at), false, true);
    } else {
      while (at < text.size() && !ends_word(text.substr(at))) ++at;
      parts.push_back(text.substr(0, at));
      text = strip(text.substr(at), true, false);
    }
  }
  if (!text.empty()) parts.push_back(text);
  return parts;
}

/// The first argument, at which `text` is split.
std::string separator_of(const Call& call, std::string_view text) {
  auto separator = call.text(0, "");
  if (separator.empty()) refuse("a text is split at an empty text");
  call.heap().search(text, separator);
  return separator;
}

Value split(Call& call, bool from_right) {
  std::string_view text = bytes_of(call.input, "it");
  const auto count = call.integer(1, -1);
  const auto most = count < 0 ? text.npos : static_cast<std::size_t>(count);
  std::vector<std::string_view> parts;
  if (!call.has(0)) {
    parts = words(text, most, from_right);
  } else {
    const auto separator = separator_of(call, text);
    while (parts.size() < most) {
      const auto at = from_right ? text.rfind(separator) : text.find(separator);
      if (at == text.npos) break;
      parts.push_back(from_right ? text.substr(at + separator.size()) : text.substr(0, at));
      text = from_right ? text.substr(0, at) : text.substr(at + separator.size());
    }
    parts.push_back(text);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return texts(call, parts);
}

std::vector<std::string_view> lines_of(std::string_view text, bool keeps_ends) {
  constexpr std::array<std::string_view, 11> kEnds{"\r\n", "\n",   "\r",       "\v",           "\f",          "\x1c",
                                                   "\x1d", "\x1e", "\xc2\x85", "\xe2\x80\xa8", "\xe2\x80\xa9"};
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t length = 0;
    for (const auto end : kEnds) {
      if (length == 0 && text.substr(at).starts_with(end)) length = end.size();
    }
    at += std::max<std::size_t>(length, 1);
    if (length == 0) continue;
    lines.push_back(text.substr(begin, at - begin - (keeps_ends ? 0 : length)));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

Value partition(Call& call, bool from_right) {
  const std::string_view text = bytes_of(call.input, "it");
  const auto separator = separator_of(call, text);
  const auto at = from_right ? text.rfind(separator) : text.find(separator);
  if (at == text.npos) {
    return texts(call,
                 from_right ? std::vector<std::string_view>{"", "", text} : std::vector<std::string_view>{text, "", ""},
                 List::Shape::tuple);
  }
  return texts(call, {text.substr(0, at), text.substr(at, separator.size()), text.substr(at + separator.size())},
               List::Shape::tuple);
}

/// The characters that positions i and i + 1 of the arguments bound, and where they begin.
std::pair<std::u32string, std::int64_t> part(Call& call, std::size_t i) {
  const auto text = characters(bytes_of(call.input, "it"));
  const auto size = std::ssize(text);
  const auto bound = [&](std::int64_t at) { return std::clamp<std::int64_t>(at < 0 ? at + size : at, 0, size); };
  const auto first = call.integer(i, 0), begin = first > size ? size + 1 : bound(first);
  const auto end = std::max(begin, bound(call.integer(i + 1, size)));
  if (begin > size) return {U"", -1};
  return {text.substr(to_index(begin), static_cast<std::size_t>(end - begin)), begin};
}

std::int64_t find_text(Call& call, bool from_right) {
  const auto& wanted = bytes_of(call.value(0), "an argument");
  const auto [range, begin] = part(call, 1);
  const auto text = utf8_of(range);
  call.heap().search(text, wanted);
  const auto at = begin < 0 ? text.npos : from_right ? text.rfind(wanted) : text.find(wanted);
  if (at == text.npos) return -1;
  return begin + static_cast<std::int64_t>(count_characters(std::string_view(text).substr(0, at)));
}

Value index_of_text(Call& call, bool from_right) {
  const auto at = find_text(call, from_right);
  if (at < 0) refuse("a text that index() looks for is not there");
  return Integer{at};
}

Value starts_or_ends(Call& call, bool ends) {
  const auto [text, begin] = part(call, 1);
  const auto found = utf8_of(text);
  std::vector<Value> options{call.value(0)};
  if (const auto* list = std::get_if<List*>(&call.value(0)); list != nullptr && (*list)->is_tuple())
    options = (*list)->items;
  return std::any_of(options.begin(), options.end(), [&, start = begin](const Value& option) {
    const auto& wanted = bytes_of(option, "an argument");
    call.heap().pass(wanted);
    return start >= 0 && (ends ? found.ends_with(wanted) : found.starts_with(wanted));
  });
}

Value aligned(Call& call, char align) {
  const auto& text = bytes_of(call.input, "it");
  const auto fill = call.text(1, " ");
  if (count_characters(fill) != 1) refuse("a text is filled with something else than one character");
  const auto width = call.integer(0, 0), missing = width - static_cast<std::int64_t>(count_characters(text));
  // str.center() puts the odd character to the left where the width is odd.
  if (align == '^' && missing > 0 && missing % 2 == 1 && width % 2 == 1) {
    call.heap().room(static_cast<std::uint64_t>(width));
    return call.made(padded(call.heap(), fill + text, width, '^', fill));
  }
  return call.made(padded(call.heap(), text, width, align, fill));
}

Value zero_filled(Call& call) {
  const auto& text = bytes_of(call.input, "it");
  const bool sign = text.starts_with('-') || text.starts_with('+');
  const auto width = call.integer(0, 0) - (sign ? 1 : 0);
  return call.made(text.substr(0, sign ? 1 : 0) + padded(call.heap(), text.substr(sign ? 1 : 0), width, '>', "0"));
}

Value indented(Call& call) {
  const auto text = bytes_of(call.input, "what is indented") + "\n";
  const bool wide_text = call.has(0) && is<Text>(call.value(0));
  const auto width = wide_text ? 0 : std::max<std::int64_t>(0, call.integer(0, 4));
  call.heap().room(static_cast<std::uint64_t>(width));
  const auto margin = wide_text ? call.text(0, "") : std::string(static_cast<std::size_t>(width), ' ');
  const bool blank = call.flag(2, false);
  std::string out = call.flag(1, false) ? margin : "";
  bool is_first = true;
  for (const auto line : lines_of(text, false)) {
    if (!is_first) out += (blank || !line.empty()) ? "\n" + margin : "\n";
    out += line;
    is_first = false;
    call.heap().room(out.size());
  }
  return call.made(std::move(out));
}

Value truncated(Call& call) {
  if (!is<Text>(call.input) && position(length_of(call), "its length") <= call.integer(0, 255) + call.integer(3, 5))
    return call.input;
  const auto text = bytes_of(call.input, "what is truncated"), end = call.text(2, "...");
  const auto length = call.integer(0, 255), leeway = call.integer(3, 5);
  const auto kept = length - static_cast<std::int64_t>(count_characters(end));
  if (kept < 0 || leeway < 0) refuse("filter 'truncate' has no room for its end");
  if (static_cast<std::int64_t>(count_characters(text)) <= length + leeway) return call.made(text);
  auto start = characters(text).substr(0, static_cast<std::size_t>(kept));
  if (!call.flag(1, false)) start = start.substr(0, start.rfind(U' '));
  const bool is_escaped = is<Text>(call.input) && std::get<Text>(call.input).is_escaped;
  return call.made(utf8_of(start) + (is_escaped ? escape_html(end) : end));
}

Value words_titled(Call& call) {
  constexpr std::u32string_view kBreaks = U"-({[<";
  const auto breaks = [&](char32_t c) { return is_space(c) || kBreaks.find(c) != kBreaks.npos; };
  const auto text = characters(soft_text(call));
  std::u32string out;
  for (auto at = text.begin(); at != text.end();) {
    const bool is_break = breaks(*at);
    const auto end = std::find_if(at, text.end(), [&](char32_t c) { return breaks(c) != is_break; });
    out += upper({*at}) + lower({at + 1, end});
    at = end;
  }
  return call.made(utf8_of(out));
}

Value count_words(Call& call) {
  std::int64_t count = 0;
  bool inside = false;
  for (const auto c : characters(soft_text(call))) {
    if (is_word(c) && !inside) ++count;
    inside = is_word(c);
  }
  return Integer{count};
}

Value escaped(Call& call) {
  const auto* text = std::get_if<Text>(&call.input);
  if (text != nullptr && text->is_escaped) return call.input;
  auto out = call.heap().text(escape_html(soft_text(call)));
  out.is_escaped = true;
  return out;
}

/// The character that an HTML entity stands for, and the entity's length.
std::pair<std::string, std::size_t> entity(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kNames{
      {{"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&apos;", "'"}, {"&nbsp;", "\xc2\xa0"}}};
  for (const auto& [name, meant] : kNames) {
    if (text.starts_with(name)) return {std::string(meant), name.size()};
  }
  const bool is_number = text.size() > 1 && text[1] == '#';
  if (!is_number && (text.size() < 2 || !is_letter(static_cast<unsigned char>(text[1])))) return {"&", 1};
  const bool hexadecimal = is_number && text.size() > 2 && (text[2] == 'x' || text[2] == 'X');
  const auto* const first = text.data() + (hexadecimal ? 3 : 2);
  std::uint32_t code = 0;
  const auto [stop, error] = std::from_chars(first, text.data() + text.size(), code, hexadecimal ? 16 : 10);
  const bool is_plain = is_number && error == std::errc() && stop < text.data() + text.size() && *stop == ';' &&
                        ((code >= 0x20 && code < 0x7f) || code == '\t' || code == '\n' ||
                         (code >= 0xa0 && code < 0xd800) || (code >= 0xe000 && code < 0xfdd0));
  if (!is_plain)
    refuse("filter 'striptags' meets an HTML entity that is not supported: '" + std::string(text.substr(0, 12)) + "'");
  const char32_t character = code;
  return {utf8_of({&character, 1}), to_index(stop + 1 - text.data())};
}

/// Markup.striptags() of markupsafe 3.
Value without_tags(Call& call) {
  const auto source = soft_text(call);
  std::string text;
  std::size_t done = 0;
  for (auto begin = source.find('<'); begin != source.npos; begin = source.find('<', done)) {
    const bool is_comment = source.compare(begin, 4, "<!--") == 0;
    const auto end = is_comment ? source.find("-->", begin + 4) : source.find('>', begin);
    if (end == source.npos) break;
    text.append(source, done, begin - done);
    done = end + (is_comment ? 3 : 1);
  }
  text.append(source, done);
  std::string spaced;
  for (const auto word : words(text, text.size() + 1, false)) spaced += (spaced.empty() ? "" : " ") + std::string(word);
  std::string out;
  for (std::string_view rest = spaced; !rest.empty();) {
    const auto at = std::min(rest.find('&'), rest.size());
    out += rest.substr(0, at);
    rest.remove_prefix(at);
    if (rest.empty()) break;
    const auto [meant, length] = entity(rest);
    out += meant;
    rest.remove_prefix(length);
  }
  return call.made(std::move(out));
}

std::string url_quoted(std::string_view text, bool in_query) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("_.-~").find(c) != std::string_view::npos || (c == '/' && !in_query);
    out += plain                  ? std::string(1, c)
           : c == ' ' && in_query ? "+"
                                  : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

Value url_encoded(Call& call) {
  const auto has_elements = is<Dict*>(call.input) || is<List*>(call.input);
  if (!has_elements) return call.made(url_quoted(soft_text(call), false));
  const auto pairs = is<Dict*>(call.input) ? elements(call.heap(), items_of(call)) : elements(call.heap(), call.input);
  std::string out;
  for (const auto& pair : pairs) {
    const auto both = elements(call.heap(), pair);
    if (both.size() != 2) refuse("filter 'urlencode' needs pairs");
    out += out.empty() ? "" : "&";
    out += url_quoted(print(call.heap(), both[0]), true) + "=" + url_quoted(print(call.heap(), both[1]), true);
    call.heap().room(out.size());
  }
  return call.made(std::move(out));
}

Value file_size(Call& call) {
  const auto size = as_double(call.input);
  if (!size) refuse("filter 'filesizeformat' needs a number");
  const bool binary = call.flag(0, false);
  const double base = binary ? 1024 : 1000;
  if (*size == 1) return call.made("1 Byte");
  if (*size < base) {
    const auto whole = whole_part(*size);
    if (!whole) refuse("filter 'filesizeformat' needs a number that is finite");
    return call.made(print(call.heap(), *whole) + " Bytes");
  }
  constexpr std::string_view kPrefixes = "kMGTPEZY";
  double unit = base * base;
  std::size_t i = 0;
  for (; i + 1 < kPrefixes.size() && !(*size < unit); ++i) unit *= base;
  const char prefix = binary && i == 0 ? 'K' : kPrefixes[i];
  return call.made(fmt::format("{:.1f} {}{}", base * *size / unit, prefix, binary ? "iB" : "B"));
}

Value with_spaces_for_tabs(Call& call) {
  const auto width = call.integer(0, 8);
  if (width > 0) call.heap().room(self(call).size(), static_cast<std::uint64_t>(width));
  std::u32string out;
  std::int64_t column = 0;
  for (const auto c : characters(self(call))) {
    if (c == '\t') {
      const auto spaces = width > 0 ? width - column % width : 0;
      out.append(static_cast<std::size_t>(spaces), U' ');
      column += spaces;
    } else {
      out += c;
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
  }
  return call.made(utf8_of(out));
}

/// str.translate() by a dictionary from numbers of characters.
Value translated(Call& call) {
  auto* const* table = std::get_if<Dict*>(&call.value(0));
  if (table == nullptr) refuse("translate() needs a dictionary");
  std::string out;
  for (const auto c : characters(self(call))) {
    const auto* found = find(call.heap(), **table, Integer{c});
    if (found == nullptr) {
      out += utf8_of({&c, 1});
    } else if (const auto code = as_integer(*found)) {
      const auto other = static_cast<char32_t>(position(*found, "a character"));
      out += utf8_of({&other, 1});
    } else if (!is<None>(*found)) {
      out += bytes_of(*found, "what a character is translated to");
    }
    call.heap().room(out.size());
  }
  return call.made(std::move(out));
}

/// str.maketrans()
Value translation_table(Call& call) {
  auto& table = *call.heap().dict();
  const auto code = [](std::u32string_view one) {
    if (one.size() != 1) refuse("maketrans() needs keys of one character");
    return Integer{one.front()};
  };
  if (!call.has(1)) {
    auto* const* given = std::get_if<Dict*>(&call.value(0));
    if (given == nullptr) refuse("maketrans() needs a dictionary, or texts");
    for (const auto& [key, value] : (*given)->items)
      put(call.heap(), table, is<Text>(key) ? Value(code(characters(bytes_of(key, "a key")))) : key, value);
    return &table;
  }
  const auto from = characters(bytes_of(call.value(0), "an argument")),
             to = characters(bytes_of(call.value(1), "an argument"));
  if (from.size() != to.size()) refuse("maketrans() needs texts of one length");
  for (std::size_t i = 0; i < from.size(); ++i) put(call.heap(), table, Integer{from[i]}, Integer{to[i]});
  if (call.has(2)) {
    for (const auto c : characters(bytes_of(call.value(2), "an argument"))) put(call.heap(), table, Integer{c}, None{});
  }
  return &table;
}

Value marked_safe(Call& call) {
  auto text = call.heap().text(soft_text(call));
  text.is_escaped = true;
  return text;
}

/// \param kept  names of rows, and the argument that each escapes (Builtin::escapes)
void keep_escape(std::vector<Builtin>& rows, const std::vector<std::pair<std::string_view, int>>& kept) {
  for (auto& row : rows) {
    for (const auto& [name, argument] : kept) {
      if (name == row.name) row.escapes = argument;
    }
  }
}

/// Methods that search a text or tell about it.
std::vector<Builtin> asking_methods() {
  return {
      {"count",
       {"sub", "start", "end"},
       1,
       [](Call& c) -> Value {
         const auto& wanted = bytes_of(c.value(0), "an argument");
         const auto [range, begin] = part(c, 1);
         if (wanted.empty()) return begin < 0 ? Integer{0} : Integer{range.size() + 1};
         const auto text = utf8_of(range);
         c.heap().search(text, wanted);
         Integer count = 0;
         for (auto at = text.find(wanted); at != text.npos; at = text.find(wanted, at + wanted.size())) ++count;
         return count;
       }},
      {"endswith", {"suffix", "start", "end"}, 1, [](Call& c) { return starts_or_ends(c, true); }},
      {"find", {"sub", "start", "end"}, 1, [](Call& c) -> Value { return Integer{find_text(c, false)}; }},
      {"index", {"sub", "start", "end"}, 1, [](Call& c) { return index_of_text(c, false); }},
      {"isalnum",
       {},
       0,
       [](Call& c) { return each_character(c, [](char32_t one) { return is_letter(one) || is_numeric(one); }); }},
      {"isalpha", {}, 0, [](Call& c) { return each_character(c, is_letter); }},
      {"isascii",
       {},
       0,
       [](Call& c) -> Value {
         return std::none_of(self(c).begin(), self(c).end(),
                             [](char one) { return static_cast<std::uint8_t>(one) > 127; });
       }},
      {"isdecimal", {}, 0, [](Call& c) { return each_character(c, is_decimal); }},
      {"isdigit", {}, 0, [](Call& c) { return each_character(c, is_digit); }},
      {"islower", {}, 0, [](Call& c) { return has_case(self(c), is_lower, is_upper); }},
      {"isnumeric", {}, 0, [](Call& c) { return each_character(c, is_numeric); }},
      {"isprintable",
       {},
       0,
       [](Call& c) -> Value { return self(c).empty() || truth(c.heap(), each_character(c, is_printable)); }},
      {"isspace", {}, 0, [](Call& c) { return each_character(c, is_space); }},
      {"istitle", {}, 0, [](Call& c) -> Value { return is_titled(characters(self(c))); }},
      {"isupper", {}, 0, [](Call& c) { return has_case(self(c), is_upper, is_lower); }},
      {"rfind", {"sub", "start", "end"}, 1, [](Call& c) -> Value { return Integer{find_text(c, true)}; }},
      {"rindex", {"sub", "start", "end"}, 1, [](Call& c) { return index_of_text(c, true); }},
      {"startswith", {"prefix", "start", "end"}, 1, [](Call& c) { return starts_or_ends(c, false); }},
  };
}

}  // namespace

std::string padded(Heap& heap, const std::string& text, std::int64_t width, char align, std::string_view fill) {
  const auto length = static_cast<std::int64_t>(count_characters(text));
  if (width <= length) return text;
  const auto missing = static_cast<std::uint64_t>(width - length);
  heap.room(missing, fill.size());
  const auto left = align == '<' ? 0 : align == '>' ? missing : missing / 2;
  std::string out;
  for (std::uint64_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (std::uint64_t i = left; i < missing; ++i) out += fill;
  return out;
}

std::string lower_case(std::string_view text) { return utf8_of(lower(characters(text))); }

std::string joined(Heap& heap, const std::vector<Value>& items, const std::string& separator, bool only_texts) {
  std::string out;
  for (const auto& item : items) {
    if (&item != &items.front()) out += separator;
    out += only_texts ? bytes_of(item, "an element") : print(heap, item);
    heap.room(out.size());
  }
  return out;
}

const std::vector<Builtin>& text_filters() {
  static const std::vector<Builtin> all = [] {
    std::vector<Builtin> rows{
        {"capitalize", {}, 0, [](Call& c) { return c.made(utf8_of(capitalize(characters(soft_text(c))))); }},
        {"center",
         {"width"},
         0,
         [](Call& c) {
           const auto text = c.heap().text(soft_text(c));
           const Value input = text;
           Call inner{c.context, input, c.all, {c.has(0) ? c.value(0) : Value(Integer{80}), std::nullopt}};
           return aligned(inner, '^');
         }},
        {"e", {}, 0, escaped},
        {"escape", {}, 0, escaped},
        {"filesizeformat", {"binary"}, 0, file_size},
        {"forceescape",
         {},
         0,
         [](Call& c) {
           auto out = c.heap().text(escape_html(soft_text(c)));
           out.is_escaped = true;
           return Value(out);
         }},
        {"format", {}, 0, format_filter, true},
        {"indent", {"width", "first", "blank"}, 0, indented},
        {"lower", {}, 0, [](Call& c) { return c.made(lower_case(soft_text(c))); }},
        {"replace",
         {"old", "new", "count"},
         2,
         [](Call& c) {
           return replaced(c, soft_text(c), print(c.heap(), c.value(0)), print(c.heap(), c.value(1)), c.integer(2, -1));
         }},
        {"safe", {}, 0, marked_safe},
        {"string", {}, 0, [](Call& c) { return is<Text>(c.input) ? c.input : c.made(soft_text(c)); }},
        {"striptags", {}, 0, without_tags},
        {"title", {}, 0, words_titled},
        {"trim", {"chars"}, 0, [](Call& c) { return stripped(c, soft_text(c), true, true); }},
        {"truncate", {"length", "killwords", "end", "leeway"}, 0, truncated},
        {"upper", {}, 0, [](Call& c) { return c.made(utf8_of(upper(characters(soft_text(c))))); }},
        {"urlencode", {}, 0, url_encoded},
        {"wordcount", {}, 0, count_words},
    };
    keep_escape(rows, {{"capitalize", -1},
                       {"center", -1},
                       {"indent", -1},
                       {"lower", -1},
                       {"trim", -1},
                       {"truncate", -1},
                       {"upper", -1}});
    return rows;
  }();
  return all;
}

const std::vector<Builtin>& text_tests() {
  static const std::vector<Builtin> all{
      {"lower", {}, 0, [](Call& c) { return has_case(soft_text(c), is_lower, is_upper); }},
      {"upper", {}, 0, [](Call& c) { return has_case(soft_text(c), is_upper, is_lower); }},
  };
  return all;
}

const std::vector<Builtin>& text_methods() {
  static const std::vector<Builtin> all = [] {
    std::vector<Builtin> rows{
        {"capitalize", {}, 0, [](Call& c) { return c.made(utf8_of(capitalize(characters(self(c))))); }},
        {"casefold", {}, 0, [](Call& c) { return c.made(utf8_of(casefold(characters(self(c))))); }},
        {"center", {"width", "fillchar"}, 1, [](Call& c) { return aligned(c, '^'); }},
        {"expandtabs", {"tabsize"}, 0, with_spaces_for_tabs},
        {"format", {}, 0, format_method, true},
        {"join",
         {"iterable"},
         1,
         [](Call& c) { return c.made(joined(c.heap(), elements(c.heap(), c.value(0)), self(c), true)); }},
        {"ljust", {"width", "fillchar"}, 1, [](Call& c) { return aligned(c, '<'); }},
        {"lower", {}, 0, [](Call& c) { return c.made(lower_case(self(c))); }},
        {"lstrip", {"chars"}, 0, [](Call& c) { return stripped(c, self(c), true, false); }},
        {"maketrans", {"x", "y", "z"}, 1, translation_table},
        {"partition", {"sep"}, 1, [](Call& c) { return partition(c, false); }},
        {"removeprefix",
         {"prefix"},
         1,
         [](Call& c) {
           const auto prefix = c.text(0, "");
           return c.made(self(c).starts_with(prefix) ? self(c).substr(prefix.size()) : self(c));
         }},
        {"removesuffix",
         {"suffix"},
         1,
         [](Call& c) {
           const auto suffix = c.text(0, "");
           return c.made(self(c).ends_with(suffix) ? self(c).substr(0, self(c).size() - suffix.size()) : self(c));
         }},
        {"replace",
         {"old", "new", "count"},
         2,
         [](Call& c) { return replaced(c, self(c), c.text(0, ""), c.text(1, ""), c.integer(2, -1)); }},
        {"rjust", {"width", "fillchar"}, 1, [](Call& c) { return aligned(c, '>'); }},
        {"rpartition", {"sep"}, 1, [](Call& c) { return partition(c, true); }},
        {"rsplit", {"sep", "maxsplit"}, 0, [](Call& c) { return split(c, true); }},
        {"rstrip", {"chars"}, 0, [](Call& c) { return stripped(c, self(c), false, true); }},
        {"split", {"sep", "maxsplit"}, 0, [](Call& c) { return split(c, false); }},
        {"splitlines", {"keepends"}, 0, [](Call& c) { return texts(c, lines_of(self(c), c.flag(0, false))); }},
        {"strip", {"chars"}, 0, [](Call& c) { return stripped(c, self(c), true, true); }},
        {"swapcase", {}, 0, [](Call& c) { return c.made(utf8_of(swapcase(characters(self(c))))); }},
        {"title", {}, 0, [](Call& c) { return c.made(utf8_of(title(characters(self(c))))); }},
        {"translate", {"table"}, 1, translated},
        {"upper", {}, 0, [](Call& c) { return c.made(utf8_of(upper(characters(self(c))))); }},
        {"zfill", {"width"}, 1, zero_filled},
    };
    // As in markupsafe.
    keep_escape(rows,
                {{"capitalize", -1},   {"casefold", -1},  {"center", 1},      {"expandtabs", -1}, {"join", 0},
                 {"ljust", 1},         {"lower", -1},     {"lstrip", -1},     {"partition", -1},  {"removeprefix", -1},
                 {"removesuffix", -1}, {"replace", 1},    {"rjust", 1},       {"rpartition", -1}, {"rsplit", -1},
                 {"rstrip", -1},       {"split", -1},     {"splitlines", -1}, {"strip", -1},      {"swapcase", -1},
                 {"title", -1},        {"translate", -1}, {"upper", -1},      {"zfill", -1}});
    for (auto& row : asking_methods()) rows.push_back(row);
    return rows;
  }();
  return all;
}

}  // namespace fsdp::jinja
