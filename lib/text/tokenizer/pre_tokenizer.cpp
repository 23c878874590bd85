// Why PCRE2, and not Oniguruma, whose syntax the patterns have and which Hugging Face's library uses: with Oniguruma
// 6.9.8, GPT-2's tokenizer encodes the shipped texts at 57 % of the tokens per second (Shakespeare) and 24 % (chess
// games) that it reaches with PCRE2's compiled patterns, which split texts 3 to 5 times as fast. The words of both are
// equal on these texts. The names of tensors in adapters need PCRE2 in any case (lib/files/transform/adapter_plan.cpp).
#include "lib/text/tokenizer/pre_tokenizer.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <new>
#include <optional>

#include "lib/base/error.hpp"
#include "lib/base/utf8.hpp"
#include "lib/text/tokenizer/token_texts.hpp"

namespace fsdp {
namespace {

constexpr std::string_view kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

constexpr std::string_view kProperties[] = {
    "L",        "Lu",       "Ll",       "Lt",       "Lm",         "Lo",      "M",      "Mn",     "Mc",
    "Me",       "N",        "Nd",       "Nl",       "No",         "P",       "Pc",     "Pd",     "Ps",
    "Pe",       "Pi",       "Pf",       "Po",       "S",          "Sm",      "Sc",     "Sk",     "So",
    "Z",        "Zs",       "Zl",       "Zp",       "C",          "Cc",      "Cf",     "Co",     "Han",
    "Thai",     "Hangul",   "Latin",    "Lao",      "Greek",      "Khmer",   "Arabic", "Hebrew", "Hiragana",
    "Katakana", "Cyrillic", "Armenian", "Georgian", "Devanagari", "Bengali", "Tamil"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

class Translation {
 public:
  Translation(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string run() {
    if (utf8_valid_prefix(pattern_) != pattern_.size()) refuse(pattern_.size(), "is not valid UTF-8");
    while (at_ < pattern_.size()) {
      switch (pattern_[at_]) {
        case '\\':
          escape(false);
          break;
        case '[':
          character_class();
          break;
        case '(':
          group();
          break;
        case '{':
          counted();
          break;
        case '^':
        case '$':
        case '.':
          refuse(1, "is not supported");
          break;
        default:
          out_ += pattern_[at_++];
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::size_t length, const std::string& problem) const {
    throw FormatError(where_ + ": '" + std::string(pattern_.substr(at_, std::min<std::size_t>(length, 60))) +
                      "' at byte " + std::to_string(at_) + " of the pattern " + problem);
  }

  void copy(std::size_t length) {
    out_ += pattern_.substr(at_, length);
    at_ += length;
  }

  char peek(std::size_t ahead) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }

  void escape(bool in_class) {
    const char next = peek(1);
    if (next == 's') {
      if (in_class && ((peek(2) == '-' && peek(3) != ']') || out_.ends_with('-'))) refuse(4, "is no range");
      out_ += in_class ? std::string(kSpace) : "[" + std::string(kSpace) + "]";
      at_ += 2;
    } else if (next == 'S' && !in_class) {
      out_ += "[^" + std::string(kSpace) + "]";
      at_ += 2;
    } else if (next == 'p' || next == 'P') {
      property();
    } else if (next == 'x' && peek(2) == '{') {
      const std::size_t end = pattern_.find('}', at_);
      if (end == pattern_.npos || end - at_ > 11) refuse(8, "is no character");
      copy(end + 1 - at_);
    } else if (next == 'r' || next == 'n' || next == 't' || next == 'f' || next == 'd') {
      copy(2);
    } else if (next > ' ' && next < 0x7F && !is_letter(next) && !is_digit(next)) {
      copy(2);
    } else {
      refuse(2, "is not supported");
    }
  }

  void property() {
    const std::size_t end = pattern_.find('}', at_);
    if (peek(2) != '{' || end == pattern_.npos) refuse(4, "is no property in braces");
    std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    if (name.starts_with('^')) name.remove_prefix(1);
    if (std::find(std::begin(kProperties), std::end(kProperties), name) == std::end(kProperties)) {
      refuse(end + 1 - at_, "is not a supported property");
    }
    copy(end + 1 - at_);
  }

  void character_class() {
    copy(1);
    if (peek(0) == '^') copy(1);
    if (peek(0) == ']') refuse(1, "opens a class and is not supported");
    while (at_ < pattern_.size() && pattern_[at_] != ']') {
      if (pattern_[at_] == '\\') {
        escape(true);
      } else if (pattern_[at_] == '[' || (pattern_[at_] == '&' && peek(1) == '&')) {
        refuse(2, "inside a class is not supported");
      } else {
        copy(1);
      }
    }
    if (at_ == pattern_.size()) refuse(1, "ends inside a class");
    copy(1);
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
    if (peek(1) != '?') return copy(1);
    if (peek(2) == 'i') refuse_folded_pairs();
    for (const std::string_view opening : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (pattern_.substr(at_).starts_with(opening)) return copy(opening.size());
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
  std::string out_;
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

}  // namespace

std::string pcre2_from_oniguruma(std::string_view pattern, const std::string& where) {
  return Translation(pattern, where).run();
}

std::string pcre2_literal(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (c > ' ' && c < 0x7F && !is_letter(c) && !is_digit(c)) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

struct SplitPattern::Compiled {
  struct Free {
    void operator()(pcre2_code* freed) const { pcre2_code_free(freed); }
  };
  std::unique_ptr<pcre2_code, Free> code;
};

SplitPattern::SplitPattern(const std::string& pattern, SplitKeeps keeps)
    : compiled_(std::make_unique<Compiled>()), keeps_(keeps) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const auto* source = reinterpret_cast<PCRE2_SPTR>(pattern.data());
  compiled_->code.reset(pcre2_compile(source, pattern.size(), PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
  if (!compiled_->code) {
    throw RuntimeFailure("PCRE2 refuses the pattern '" + pattern + "' at " + std::to_string(offset) + ": " +
                         message_of(error) + "; it must be built with Unicode support");
  }
  pcre2_jit_compile(compiled_->code.get(), PCRE2_JIT_COMPLETE);  // matching works without it, only slower
}

SplitPattern::~SplitPattern() = default;
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;

void SplitPattern::split(std::string_view text, std::vector<std::string_view>& words) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(pcre2_match_data_create(1, nullptr));
  if (!match) throw std::bad_alloc();
  const Context context = context_for(text.size());
  const auto add = [&](std::size_t begin, std::size_t end, SplitKeeps kind) {
    if (end > begin && (keeps_ == SplitKeeps::all || keeps_ == kind)) words.push_back(text.substr(begin, end - begin));
  };
  std::size_t done = 0, from = 0;
  std::optional<std::size_t> last_end;
  while (from <= text.size() && !text.empty()) {
    // The caller has checked the text; PCRE2 would check the rest of it again for each word, in quadratic time.
    std::uint32_t options = PCRE2_NO_UTF_CHECK;
    int found = pcre2_match(compiled_->code.get(), subject, text.size(), from, options, match.get(), context.get());
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      options |= PCRE2_NO_JIT;  // keeps the states of the match on the heap
      found = pcre2_match(compiled_->code.get(), subject, text.size(), from, options, match.get(), context.get());
    }
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      throw RuntimeFailure("cannot split a text into words at byte " + std::to_string(from) + ": " + message_of(found));
    }
    const std::size_t begin = pcre2_get_ovector_pointer(match.get())[0];
    const std::size_t end = pcre2_get_ovector_pointer(match.get())[1];
    if (begin == end && last_end == end) {
      // An empty match directly after a match does not count: continue one character later, as Oniguruma does.
      from += end < text.size() ? utf8_character_length(text.substr(from)) : 1;
      continue;
    }
    add(done, begin, SplitKeeps::gaps);
    add(begin, end, SplitKeeps::matches);
    done = from = end;
    last_end = end;
  }
  add(done, text.size(), SplitKeeps::gaps);
}

std::string gpt2_pattern() {
  return pcre2_from_oniguruma(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
                              "GPT-2's pattern");
}

std::string qwen2_pattern() {
  return pcre2_from_oniguruma(
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      "Qwen 2's pattern");
}

namespace {

/// Appends the words of `word` by a pattern for its bytes' spelling in GPT-2's alphabet.
void split_bytes(const SplitPattern& pattern, std::string_view word, std::vector<std::string_view>& words) {
  static const auto alphabet = spelled_bytes();
  std::string spelled;
  for (const char byte : word) spelled += alphabet[static_cast<std::uint8_t>(byte)];
  std::vector<std::string_view> parts;
  pattern.split(spelled, parts);
  for (const auto part : parts) {
    const auto is_first = [](char c) { return (static_cast<std::uint8_t>(c) & 0xC0) != 0x80; };
    const auto bytes = static_cast<std::size_t>(std::count_if(part.begin(), part.end(), is_first));
    words.push_back(word.substr(0, bytes));
    word.remove_prefix(bytes);
  }
}

}  // namespace

void PreTokenizer::split(std::string_view text, std::vector<std::string_view>& words) const {
  words.clear();
  while (!text.empty()) {
    const std::size_t valid = utf8_valid_prefix(text);
    split_valid(text.substr(0, valid), words);
    std::size_t end = valid;
    while (end < text.size() && utf8_character_length(text.substr(end)) == 0) ++end;
    if (end > valid) words.push_back(text.substr(valid, end - valid));
    text.remove_prefix(end);
  }
  for (const SplitPattern& pattern : of_bytes_) {
    std::vector<std::string_view> after;
    for (const std::string_view word : words) split_bytes(pattern, word, after);
    words.swap(after);
  }
}

void PreTokenizer::split_valid(std::string_view text, std::vector<std::string_view>& words) const {
  if (patterns_.empty()) {
    if (!text.empty()) words.push_back(text);
    return;
  }
  if (patterns_.size() == 1) return patterns_.front().split(text, words);
  std::vector<std::string_view> before{text}, after;
  for (const SplitPattern& pattern : patterns_) {
    after.clear();
    for (const std::string_view word : before) pattern.split(word, after);
    before.swap(after);
  }
  words.insert(words.end(), before.begin(), before.end());
}

}  // namespace fsdp
