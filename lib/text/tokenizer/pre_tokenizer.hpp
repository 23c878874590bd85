#pragma once
// Cuts a text into the words inside which byte pairs are merged.
#include <string>
#include <string_view>
#include <vector>

#include "lib/text/tokenizer/split_pattern.hpp"

namespace fsdp {

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
