#pragma once
// Cuts a text into the words inside which byte pairs are merged.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// Patterns of tokenizer.json, which are in Oniguruma's syntax, for PCRE2.

/// The same pattern for PCRE2 with PCRE2_UTF and PCRE2_UCP. Only what both read alike passes, with \s and \S spelled
/// out as Unicode's White_Space: PCRE2's own \s also takes U+180E, which has not been white space since Unicode 6.3.
/// \param where  names the pattern in errors
/// \throws FormatError naming the first construct that is not supported and its place
std::string pcre2_from_oniguruma(std::string_view pattern, const std::string& where);

/// A pattern that matches exactly `text`.
std::string pcre2_literal(std::string_view text);

// A regular expression that cuts a text into words.

/// Which parts of a text are words: matches of the pattern, what lies between two of them, or both ("Isolated" in
/// Hugging Face's tokenizers). What is no word is lost.
enum class SplitKeeps : std::uint8_t { all, matches, gaps };

class SplitPattern {
 public:
  /// \param pattern  PCRE2's syntax, Unicode
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

/// GPT-2's pattern: English contractions, then runs of letters, of numbers or of other signs, each with at most one
/// space before it, then white space, leaving its last space to the word that follows. In PCRE2's syntax.
std::string gpt2_pattern();

/// Qwen 2's: digits one by one, line ends with the signs before them, a sign before letters with them.
std::string qwen2_pattern();

/// Patterns applied one after the other, each inside the words that the one before made.
class PreTokenizer {
 public:
  explicit PreTokenizer(std::vector<SplitPattern> patterns) : patterns_(std::move(patterns)) {}

  /// Makes `words` the words in order, views into `text`: all of it but for what patterns drop. Every run of bytes that
  /// are no valid UTF-8 is a word of its own.
  void split(std::string_view text, std::vector<std::string_view>& words) const;

 private:
  void split_valid(std::string_view text, std::vector<std::string_view>& words) const;
  std::vector<SplitPattern> patterns_;
};

}  // namespace fsdp
