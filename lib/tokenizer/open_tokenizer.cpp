#include "lib/tokenizer/open_tokenizer.hpp"

#include "lib/base/error.hpp"
#include "lib/tokenizer/byte_level_bpe.hpp"
#include "lib/tokenizer/sentencepiece_tokenizer.hpp"
#include "lib/tokenizer/tokenizer_json.hpp"

namespace fsdp {
namespace {

enum class Kind { none, sentencepiece, json, byte_level };

Kind kind_of(const std::filesystem::path& directory) {
  const auto has = [&](const char* name) {
    std::error_code ignored;
    return std::filesystem::exists(directory / name, ignored);
  };
  if (has("tokenizer.model")) return Kind::sentencepiece;
  if (has("tokenizer.json")) return Kind::json;
  return has("vocab.json") && has("merges.txt") ? Kind::byte_level : Kind::none;
}

}  // namespace

bool has_tokenizer(const std::filesystem::path& directory) { return kind_of(directory) != Kind::none; }

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name) {
  if (name == "gpt2") return make_gpt2_tokenizer();
  const std::filesystem::path directory = name;
  const Kind kind = kind_of(directory);
  if (kind == Kind::none) {
    throw MissingInput(name + ": holds no tokenizer; looked for tokenizer.model, tokenizer.json and vocab.json with " +
                       "merges.txt (the built-in one is called gpt2)");
  }
  const TokenizerConfig config = read_tokenizer_config(directory);
  if (kind == Kind::sentencepiece) return make_sentencepiece_tokenizer(directory / "tokenizer.model", config);
  if (kind == Kind::json) return make_tokenizer_json(directory / "tokenizer.json", config);
  return make_byte_level_bpe(directory / "vocab.json", directory / "merges.txt", config);
}

}  // namespace fsdp
