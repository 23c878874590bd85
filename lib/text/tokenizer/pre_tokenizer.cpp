#include "lib/text/tokenizer/pre_tokenizer.hpp"

#include "lib/text/tokenizer/oniguruma.hpp"
#include "lib/text/tokenizer/utf8.hpp"

namespace fsdp {

std::string gpt2_pattern() {
  return pcre2_from_oniguruma(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
                              "GPT-2's pattern");
}

std::string qwen2_pattern() {
  return pcre2_from_oniguruma(
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      "Qwen 2's pattern");
}

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
