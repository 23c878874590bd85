#include "lib/text/tokenizer/open_tokenizer.hpp"

#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/json_text.hpp"
#include "lib/text/tokenizer/byte_level_bpe.hpp"
#include "lib/text/tokenizer/sentencepiece_tokenizer.hpp"
#include "lib/text/tokenizer/tokenizer_files.hpp"
#include "lib/text/tokenizer/tokenizer_json.hpp"

namespace fsdp {
namespace {

/// Where tokenizer.json is of a kind that is not built, what stands for it in tokenizer.model; a damaged one is never
/// passed over. \throws FormatError about tokenizer.json
std::shared_ptr<const Tokenizer> open_json(const std::filesystem::path& directory, const TokenizerConfig& config) {
  const auto json = directory / "tokenizer.json";
  try {
    return make_tokenizer_json(json, config);
  } catch (const FormatError&) {
    std::error_code ignored;
    const auto model = directory / "tokenizer.model";
    const bool damaged = parse_json_or_discard(read_text_file(json), json.string()).is_discarded();
    if (damaged || !std::filesystem::exists(model, ignored)) throw;
    try {
      return make_sentencepiece_tokenizer(model, config);
    } catch (const FormatError&) {  // as T5's: the first one says why
    }
    throw;
  }
}

}  // namespace

bool has_tokenizer(const std::filesystem::path& directory) { return tokenizer_kind(directory) != TokenizerKind::none; }

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name) {
  if (name == "gpt2") return make_gpt2_tokenizer();
  const std::filesystem::path directory = name;
  const auto kind = tokenizer_kind(directory);
  if (kind == TokenizerKind::none) {
    throw MissingInput(name + ": holds no tokenizer; looked for tokenizer.json, tokenizer.model and vocab.json with " +
                       "merges.txt (the built-in one is called gpt2)");
  }
  const TokenizerConfig config = read_tokenizer_config(directory);
  if (kind == TokenizerKind::sentencepiece) return make_sentencepiece_tokenizer(directory / "tokenizer.model", config);
  if (kind == TokenizerKind::json) return open_json(directory, config);
  return make_byte_level_bpe(directory / "vocab.json", directory / "merges.txt", config);
}

}  // namespace fsdp
