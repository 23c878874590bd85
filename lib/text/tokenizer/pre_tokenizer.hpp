#pragma once
// Splits a text into words; byte pairs are merged inside words only.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// Patterns of tokenizer.json have Oniguruma's syntax and are translated for PCRE2.

/// Translates a pattern for PCRE2 with PCRE2_UTF and PCRE2_UCP. Accepts only constructs that both engines read alike,
/// and spells out \s and \S as Unicode's White_Space: PCRE2's own \s also matches U+180E, which has not been white
/// space since Unicode 6.3.
/// \param where  names the pattern in errors
/// \throws FormatError naming the first unsupported construct and its place
std::string pcre2_from_oniguruma(std::string_view pattern, const std::string& where);

/// Returns a pattern that matches exactly `text`.
std::string pcre2_literal(std::string_view text);

/// Which parts of a text are words: matches of the pattern, the parts between them, or both ("Isolated" in Hugging
/// Face's tokenizers). Other parts are dropped.
enum class SplitKeeps : std::uint8_t { all, matches, gaps };

/// A regular expression that splits a text into words.
class SplitPattern {
 public:
  /// \param pattern  in PCRE2's syntax
  /// \throws RuntimeFailure when PCRE2 refuses it
  explicit SplitPattern(const std::string& pattern, SplitKeeps keeps = SplitKeeps::all);
  ~SplitPattern();
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;

  /// Appends the words of `text`, which must be valid UTF-8, to `words`: views into it in order, none empty.
  void split(std::string_view text, std::vector<std::string_view>& words) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
  SplitKeeps keeps_;
};

/// GPT-2's pattern in PCRE2's syntax: English contractions; runs of letters, of numbers or of other signs, each with at
/// most one leading space; white space, whose last space goes to the word that follows.
std::string gpt2_pattern();

/// Qwen 2's pattern in PCRE2's syntax: single digits, line ends with the signs before them, letters with a sign before
/// them.
std::string qwen2_pattern();

/// Patterns that are applied one after the other, each inside the words of the previous one.
class PreTokenizer {
 public:
  /// \param of_bytes  applied last, to words whose bytes are spelled in GPT-2's alphabet (token_texts.hpp): to such a
  ///                  pattern, byte 0xB2 is a digit (U+00B2). They keep all parts
  explicit PreTokenizer(std::vector<SplitPattern> patterns, std::vector<SplitPattern> of_bytes = {})
      : patterns_(std::move(patterns)), of_bytes_(std::move(of_bytes)) {}

  /// Replaces `words` by the words of `text` in order, as views into `text`. They cover all of it except parts that
  /// patterns drop. Every run of bytes that is not valid UTF-8 is a word of its own.
  void split(std::string_view text, std::vector<std::string_view>& words) const;

 private:
  void split_valid(std::string_view text, std::vector<std::string_view>& words) const;
  std::vector<SplitPattern> patterns_, of_bytes_;
};

}  // namespace fsdp
