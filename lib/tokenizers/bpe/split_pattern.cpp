// Why PCRE2, and not Oniguruma, whose syntax the patterns have and which Hugging Face's library uses: with Oniguruma
// 6.9.8, GPT-2's tokenizer encodes the shipped texts at 57 % of the tokens per second (Shakespeare) and 24 % (chess
// games) that it reaches with PCRE2's compiled patterns, which split texts 3 to 5 times as fast. The words of both are
// equal on these texts. The names of tensors in adapters need PCRE2 in any case (lib/models/config/adapter_rules.cpp).
#include "lib/tokenizers/bpe/split_pattern.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <limits>
#include <new>
#include <optional>

#include "lib/base/text/utf8.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/tokenizers/unicode/character_kinds.hpp"

namespace fsdp {

namespace {

/// A pattern whose characters and classes are sets.
struct SetPattern {
  std::vector<CodePoints> sets;
  std::vector<std::size_t> order;   ///< sets in the order of the pattern
  std::vector<std::string> syntax;  ///< the text before each set, and after the last
};

constexpr std::size_t kMostSets = 2000;  ///< different characters and classes of a pattern

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
CodePoints one(char32_t code) { return CodePoints({{code, code}}); }

/// The code point of the character that `text`, valid UTF-8, begins with.
char32_t first_code(std::string_view text) {
  const auto length = utf8_character_length(text);
  auto code = static_cast<char32_t>(static_cast<unsigned char>(text.front()));
  if (length > 1) code &= 0x7fU >> length;
  for (std::size_t i = 1; i < length; ++i) code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3fU);
  return code;
}

/// Letters of ASCII in both cases. Two characters beyond ASCII are small or capital letters of it, too.
CodePoints without_case(const CodePoints& characters) {
  std::vector<CodePoints::Range> ranges(characters.ranges().begin(), characters.ranges().end());
  for (char32_t small = 'a'; small <= 'z'; ++small) {
    const char32_t capital = small - 'a' + 'A', other = small == 's' ? 0x17f : small == 'k' ? 0x212a : small;
    if (!characters.contains(small) && !characters.contains(capital) && !characters.contains(other)) continue;
    for (const auto code : {small, capital, other}) ranges.push_back({code, code});
  }
  return CodePoints(std::move(ranges));
}

/// Characters beyond ASCII that have another case, or come as the other case of one that has.
bool may_have_case(char32_t code) {
  static const auto kCased = [] {
    CodePoints all;
    for (const auto* category : {"Lu", "Ll", "Lt", "Mn", "Nl", "So"})
      all = all.joined(*CodePoints::with_property(category));
    return all;
  }();
  return code >= 0x80 && code != 0x17f && code != 0x212a && kCased.contains(code);
}

/// Reads a pattern in Oniguruma's syntax.
class Reading {
 public:
  Reading(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  SetPattern run() {
    if (utf8_valid_prefix(pattern_) != pattern_.size()) refuse(pattern_.size(), "is not valid UTF-8");
    while (at_ < pattern_.size()) {
      switch (pattern_[at_]) {
        case '[':
          add(character_class());
          break;
        case '(':
          group();
          break;
        case ')':
          if (!ignores_case_.empty()) ignores_case_.pop_back();
          copy(1);
          break;
        case '{':
          counted();
          break;
        case '^':
        case '$':
        case '.':
          refuse(1, "is not supported");
        case '|':
        case '*':
        case '+':
        case '?':
          copy(1);
          break;
        default:
          add(item(false).characters);
      }
    }
    parts_.syntax.push_back(std::move(syntax_));
    return std::move(parts_);
  }

 private:
  /// One character, a class that an escape names, or a property.
  struct Item {
    CodePoints characters;
    std::optional<char32_t> code;  ///< if it is one character
  };

  [[noreturn]] void refuse(std::size_t length, const std::string& problem) const {
    throw FormatError(where_ + ": '" + std::string(pattern_.substr(at_, std::min<std::size_t>(length, 60))) +
                      "' at byte " + std::to_string(at_) + " of the pattern " + problem);
  }

  void copy(std::size_t length) {
    syntax_ += pattern_.substr(at_, length);
    at_ += length;
  }

  void add(CodePoints characters) {
    auto& sets = parts_.sets;
    const auto known = std::find(sets.begin(), sets.end(), characters);
    parts_.order.push_back(to_index(known - sets.begin()));
    if (known == sets.end()) sets.push_back(std::move(characters));
    if (sets.size() > kMostSets) refuse(8, "is one character or class more than there may be");
    parts_.syntax.push_back(std::move(syntax_));
    syntax_.clear();
  }

  char peek(std::size_t ahead) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  bool ignores_case() const { return !ignores_case_.empty() && ignores_case_.back(); }

  Item character(char32_t code, std::size_t length) {
    if (ignores_case() && may_have_case(code))
      refuse(length, "has a case that is ignored, beyond ASCII: not supported");
    at_ += length;
    return {ignores_case() ? without_case(one(code)) : one(code), code};
  }

  Item item(bool in_class) {
    if (peek(0) != '\\')
      return character(first_code(pattern_.substr(at_)), utf8_character_length(pattern_.substr(at_)));
    const char next = peek(1);
    const auto named = [&](CodePoints characters) {
      at_ += 2;
      return Item{std::move(characters), {}};
    };
    if (next == 's') return named(CodePoints::white_space());
    if (next == 'S' && !in_class) return named(CodePoints::white_space().inverted());
    if (next == 'd') return named(*CodePoints::with_property("Nd"));
    if (next == 'p' || next == 'P') return property(in_class);
    if (next == 'x' && peek(2) == '{') return hexadecimal();
    constexpr std::string_view kLetters = "rntf", kMeant = "\r\n\t\f";
    if (const auto letter = kLetters.find(next); letter != kLetters.npos)
      return character(static_cast<unsigned char>(kMeant[letter]), 2);
    if (next > ' ' && next < 0x7F && !is_letter(next) && !is_digit(next))
      return character(static_cast<unsigned char>(next), 2);
    refuse(2, "is not supported");
  }

  Item hexadecimal() {
    const std::size_t end = pattern_.find('}', at_);
    if (end == pattern_.npos || end - at_ > 11) refuse(8, "is no character");
    const auto digits = pattern_.substr(at_ + 3, end - at_ - 3);
    std::uint32_t code = 0;
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    const bool is_code = error == std::errc() && stop == digits.data() + digits.size() && code <= 0x10ffff;
    if (!is_code || (code >= 0xd800 && code < 0xe000)) refuse(end + 1 - at_, "is no character");
    return character(code, end + 1 - at_);
  }

  Item property(bool in_class) {
    const std::size_t end = pattern_.find('}', at_);
    if (peek(2) != '{' || end == pattern_.npos) refuse(4, "is no property in braces");
    auto name = pattern_.substr(at_ + 3, end - at_ - 3);
    bool is_inverted = peek(1) == 'P';
    if (name.starts_with('^')) {
      name.remove_prefix(1);
      is_inverted = !is_inverted;
    }
    auto found = CodePoints::with_property(name);
    if (!found) refuse(end + 1 - at_, "is not a supported property");
    // Within a class, Oniguruma adds the other case of each letter.
    constexpr std::string_view kWithoutCase = "NPSZC";
    if (in_class && ignores_case() && (name.size() > 2 || kWithoutCase.find(name.front()) == kWithoutCase.npos))
      refuse(end + 1 - at_, "has a case that is ignored, in a class: not supported");
    at_ = end + 1;
    return {is_inverted ? found->inverted() : std::move(*found), {}};
  }

  CodePoints character_class() {
    ++at_;
    const bool is_inverted = peek(0) == '^';
    if (is_inverted) ++at_;
    if (peek(0) == ']') refuse(1, "opens a class and is not supported");
    CodePoints all;
    while (at_ < pattern_.size() && pattern_[at_] != ']') {
      if (pattern_[at_] == '[' || (pattern_[at_] == '&' && peek(1) == '&'))
        refuse(2, "inside a class is not supported");
      auto first = item(true);
      if (peek(0) != '-' || peek(1) == ']') {
        all = all.joined(first.characters);
        continue;
      }
      if (!first.code) refuse(2, "is no range");
      if (++at_ == pattern_.size()) refuse(1, "ends inside a class");
      const auto last = item(true);
      if (!last.code || *last.code < *first.code) refuse(1, "behind '-' ends no range");
      const CodePoints range({{*first.code, *last.code}});
      if (ignores_case() && *last.code >= 0x80)
        refuse(1, "behind '-' ends a range whose case is ignored: not supported");
      all = all.joined(ignores_case() ? without_case(range) : range);
    }
    if (at_ == pattern_.size()) refuse(1, "ends inside a class");
    ++at_;
    return is_inverted ? all.inverted() : all;
  }

  /// Refuses pairs that fold to one character: when case is ignored, Oniguruma matches "ß" for "ss", PCRE2 does not.
  void refuse_folded_pairs() const {
    std::size_t end = at_ + 1;
    for (int depth = 1; end < pattern_.size() && depth > 0; ++end) {
      if (pattern_[end] == '(') ++depth;
      if (pattern_[end] == ')') --depth;
    }
    const auto inside = pattern_.substr(at_, end - at_);
    for (std::size_t i = 0; i + 1 < inside.size(); ++i) {
      const std::string pair{static_cast<char>(inside[i] | 0x20), static_cast<char>(inside[i + 1] | 0x20)};
      if (pair == "ss" || pair == "ff" || pair == "fi" || pair == "fl" || pair == "st")
        refuse(inside.size(), "ignores the case of '" + pair + "', which is a single character too");
    }
  }

  void group() {
    if (peek(1) == '*') refuse(2, "is not supported");
    const bool outer = ignores_case();
    if (peek(1) != '?') {
      ignores_case_.push_back(outer);
      return copy(1);
    }
    if (peek(2) == 'i') refuse_folded_pairs();
    for (const std::string_view opening : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (!pattern_.substr(at_).starts_with(opening)) continue;
      ignores_case_.push_back(outer || opening == "(?i:");
      syntax_ += opening == "(?i:" ? "(?:" : opening;
      at_ += opening.size();
      return;
    }
    refuse(4, "is not a supported group");
  }

  /// Copies {n}, {n,} or {n,m}. A quantifier after it is refused, because it means different things in the two
  /// syntaxes.
  void counted() {
    std::size_t end = at_ + 1;
    while (end < pattern_.size() && is_digit(pattern_[end])) ++end;
    if (end == at_ + 1) refuse(4, "is no repetition");
    if (end < pattern_.size() && pattern_[end] == ',') ++end;
    while (end < pattern_.size() && is_digit(pattern_[end])) ++end;
    if (end == pattern_.size() || pattern_[end] != '}') refuse(8, "is no repetition");
    const char after = end + 1 < pattern_.size() ? pattern_[end + 1] : '\0';
    if (after == '+' || after == '?' || after == '*') refuse(end + 2 - at_, "is not supported");
    copy(end + 1 - at_);
  }

  std::string_view pattern_;
  const std::string& where_;
  std::size_t at_ = 0;
  SetPattern parts_;
  std::string syntax_;              ///< after the last set
  std::vector<bool> ignores_case_;  ///< by group that is open
};

std::string message_of(int code) {
  std::string text(256, '\0');
  const int length = pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text.data()), text.size());
  text.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  return text;
}

struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
using Context = std::unique_ptr<pcre2_match_context, FreeContext>;

/// Raises the limit of ten million backtracking steps for long texts, whose runs of white space take more; null for
/// short texts.
Context context_for(std::size_t text_bytes) {
  if (text_bytes < 1'000'000) return {};
  Context context(pcre2_match_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  const std::size_t steps = std::min<std::size_t>(10 * text_bytes, std::numeric_limits<std::uint32_t>::max());
  pcre2_set_match_limit(context.get(), static_cast<std::uint32_t>(steps));
  return context;
}

struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

/// Length of the character at `at` of a valid text.
std::size_t length_at(std::string_view text, std::size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

bool is_ascii(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
}

}  // namespace

struct SplitPattern::Compiled {
  struct Free {
    void operator()(pcre2_code* freed) const { pcre2_code_free(freed); }
  };
  Compiled(const SetPattern& read, const std::string& where);

  CharacterKinds kinds;
  std::unique_ptr<pcre2_code, Free> code;  ///< for the signs of kinds
};

SplitPattern::Compiled::Compiled(const SetPattern& read, const std::string& where) : kinds(read.sets) {
  std::vector<std::string> classes;
  for (std::size_t i = 0; i < read.sets.size(); ++i) classes.push_back(kinds.class_of(i));
  std::string pattern = read.syntax.front();
  for (std::size_t i = 0; i < read.order.size(); ++i) pattern += classes[read.order[i]] + read.syntax[i + 1];
  int error = 0;
  PCRE2_SIZE offset = 0;
  code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                           kinds.is_wide() ? PCRE2_UTF : 0, &error, &offset, nullptr));
  if (!code) throw FormatError(where + ": PCRE2 refuses the pattern: " + message_of(error));
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // matching works without it, only slower
}

SplitPattern::SplitPattern(std::string_view pattern, const std::string& where, SplitKeeps keeps)
    : compiled_(std::make_unique<Compiled>(Reading(pattern, where).run(), where)), keeps_(keeps) {}

SplitPattern::SplitPattern(const CodePoints& characters, bool runs)
    : compiled_(std::make_unique<Compiled>(SetPattern{{characters}, {0}, {"", runs ? "+" : ""}}, "")),
      keeps_(SplitKeeps::all) {}

SplitPattern::~SplitPattern() = default;
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;

void SplitPattern::split(std::string_view text, std::vector<std::string_view>& words) const {
  const bool plain = is_ascii(text), wide = compiled_->kinds.is_wide();
  const auto spelled = plain ? std::string() : compiled_->kinds.spelled(text);
  const std::string_view signs = plain ? text : spelled;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(signs.data());
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(pcre2_match_data_create(1, nullptr));
  if (!match) throw std::bad_alloc();
  const Context context = context_for(signs.size());
  std::size_t in_signs = 0, in_text = 0;  // one place
  const auto add = [&](std::size_t end, SplitKeeps kind) {
    const auto begin = in_text;
    if (plain) {
      in_text = in_signs = end;
    } else {
      for (; in_signs < end; in_signs += wide ? length_at(signs, in_signs) : 1) in_text += length_at(text, in_text);
    }
    if (in_text > begin && (keeps_ == SplitKeeps::all || keeps_ == kind))
      words.push_back(text.substr(begin, in_text - begin));
  };
  std::size_t from = 0;
  std::optional<std::size_t> last_end;
  while (from <= signs.size() && !signs.empty()) {
    // Signs are spelled rightly; PCRE2 would check the rest of them again for each word, in quadratic time.
    std::uint32_t options = PCRE2_NO_UTF_CHECK;
    int found = pcre2_match(compiled_->code.get(), subject, signs.size(), from, options, match.get(), context.get());
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      options |= PCRE2_NO_JIT;  // keeps the states of the match on the heap
      found = pcre2_match(compiled_->code.get(), subject, signs.size(), from, options, match.get(), context.get());
    }
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      throw RuntimeFailure("cannot split a text into words at byte " + std::to_string(in_text) + ": " +
                           message_of(found));
    }
    const std::size_t begin = pcre2_get_ovector_pointer(match.get())[0];
    const std::size_t end = pcre2_get_ovector_pointer(match.get())[1];
    if (begin == end && last_end == end) {
      // An empty match directly after a match does not count: continue one character later, as Oniguruma does.
      from += wide && end < signs.size() ? length_at(signs, end) : 1;
      continue;
    }
    add(begin, SplitKeeps::gaps);
    add(end, SplitKeeps::matches);
    from = end;
    last_end = end;
  }
  add(signs.size(), SplitKeeps::gaps);
}

std::string literal_pattern(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (c > ' ' && c < 0x7F && !is_letter(c) && !is_digit(c)) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

}  // namespace fsdp
