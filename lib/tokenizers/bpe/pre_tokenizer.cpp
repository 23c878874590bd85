#include "lib/tokenizers/bpe/pre_tokenizer.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lib/base/text/utf8.hpp"
#include "lib/tokenizers/vocabulary/token_texts.hpp"

namespace fsdp {

std::string gpt2_pattern() { return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"; }

std::string qwen2_pattern() {
  return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
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
