#include "lib/tokenizer/open_tokenizer.hpp"

#include "lib/base/error.hpp"
#include "lib/tokenizer/byte_level_bpe.hpp"
#include "lib/tokenizer/sentencepiece_tokenizer.hpp"
#include "lib/tokenizer/tokenizer_files.hpp"
#include "lib/tokenizer/tokenizer_json.hpp"

namespace fsdp {
bool has_tokenizer(const std::filesystem::path& directory) { return tokenizer_kind(directory) != TokenizerKind::none; }

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name) {
  if (name == "gpt2") return make_gpt2_tokenizer();
  const std::filesystem::path directory = name;
  const auto kind = tokenizer_kind(directory);
  if (kind == TokenizerKind::none) {
    throw MissingInput(name + ": holds no tokenizer; looked for tokenizer.model, tokenizer.json and vocab.json with " +
                       "merges.txt (the built-in one is called gpt2)");
  }
  const TokenizerConfig config = read_tokenizer_config(directory);
  if (kind == TokenizerKind::sentencepiece) return make_sentencepiece_tokenizer(directory / "tokenizer.model", config);
  if (kind == TokenizerKind::json) return make_tokenizer_json(directory / "tokenizer.json", config);
  return make_byte_level_bpe(directory / "vocab.json", directory / "merges.txt", config);
}

}  // namespace fsdp
