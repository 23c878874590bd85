#pragma once
// Cuts a text into the words inside which byte pairs are merged.
#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

namespace fsdp {

/// GPT-2's pattern: English contractions, then runs of letters, of numbers or of other signs, each with at most one
/// space before it, then white space, leaving its last space to the word that follows.
class Gpt2PreTokenizer {
 public:
  Gpt2PreTokenizer();
  ~Gpt2PreTokenizer();
  Gpt2PreTokenizer(const Gpt2PreTokenizer&) = delete;
  Gpt2PreTokenizer& operator=(const Gpt2PreTokenizer&) = delete;

  /// The words in order, views into `text` that together are all of it. Every run of bytes that are no valid UTF-8 is
  /// a word of its own.
  std::vector<std::string_view> split(std::string_view text) const;

 private:
  struct Pattern;
  void split_valid(std::string_view text, std::vector<std::string_view>& words) const;
  std::unique_ptr<Pattern> pattern_;
};

}  // namespace fsdp
