#include "lib/text/tokenizer/tokenizer_files.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lib/text/tokenizer/byte_alphabet.hpp"
#include "lib/text/tokenizer/gpt2_merges.hpp"

namespace fsdp {
namespace {

/// The character of GPT-2's alphabet that stands for the byte at `place` in it: printable ones stand for themselves.
std::string alphabet_character(std::size_t place) {
  constexpr unsigned first_printable = 0x21, last_ascii = 0x7e;
  const auto alphabet = byte_alphabet();
  constexpr std::size_t num_printable = 188;  // the others stand for U+0100 and what follows
  const unsigned code = place < num_printable ? alphabet[place] : 0x100 + static_cast<unsigned>(place - num_printable);
  if (code >= first_printable && code <= last_ascii) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};  // two bytes of UTF-8
}

}  // namespace

TokenizerKind tokenizer_kind(const std::filesystem::path& directory) {
  const auto has = [&](const char* name) {
    std::error_code ignored;
    return std::filesystem::exists(directory / name, ignored);
  };
  if (has("tokenizer.json")) return TokenizerKind::json;
  if (has("tokenizer.model")) return TokenizerKind::sentencepiece;
  return has("vocab.json") && has("merges.txt") ? TokenizerKind::byte_level : TokenizerKind::none;
}

std::vector<std::filesystem::path> tokenizer_files(const std::filesystem::path& directory) {
  if (directory == "gpt2") return {};
  std::vector<std::filesystem::path> files;
  // config.json says which class the tokenizer is of where tokenizer_config.json does not.
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "tokenizer_config.json",
                           "special_tokens_map.json", "added_tokens.json", "config.json"}) {
    std::error_code ignored;
    if (std::filesystem::exists(directory / name, ignored)) files.push_back(directory / name);
  }
  return files;
}

std::map<std::string, std::string> gpt2_tokenizer_files() {
  // The vocabulary follows from the merges: the alphabet, what each merge makes, the end of text.
  auto vocabulary = nlohmann::ordered_json::object();
  auto& pieces = vocabulary.get_ref<nlohmann::ordered_json::object_t&>();
  const auto add = [&](std::string piece) { pieces.emplace_back(std::move(piece), static_cast<int>(pieces.size())); };
  for (std::size_t place = 0; place < byte_alphabet().size(); ++place) add(alphabet_character(place));
  const auto merges = detail::gpt2_merges_text();
  for (auto rest = merges; !rest.empty();) {
    const auto end = std::min(rest.find('\n'), rest.size());
    const auto line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const auto space = line.find(' ');
    if (space == line.npos || line.starts_with("#version")) continue;
    add(std::string(line.substr(0, space)) + std::string(line.substr(space + 1)));
  }
  add("<|endoftext|>");
  return {{"merges.txt", std::string(merges)}, {"vocab.json", vocabulary.dump(-1, ' ', true) + "\n"}};
}

}  // namespace fsdp
