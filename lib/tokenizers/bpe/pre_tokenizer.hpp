#pragma once
// Splits a text into words; byte pairs are merged inside words only.
#include <string>
#include <string_view>
#include <vector>

#include "lib/tokenizers/bpe/split_pattern.hpp"

namespace fsdp {

/// GPT-2's pattern: English contractions; runs of letters, of numbers or of other signs, each with at
/// most one leading space; white space, whose last space goes to the word that follows.
std::string gpt2_pattern();

/// Qwen 2's pattern: single digits, line ends with the signs before them, letters with a sign before
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
