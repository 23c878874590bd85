#include "lib/tokenizers/files/open_tokenizer.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/formats/gguf_metadata.hpp"
#include "lib/tokenizers/bpe/byte_level_bpe.hpp"
#include "lib/tokenizers/files/tokenizer_json.hpp"
#include "lib/tokenizers/gguf/gguf_tokenizer.hpp"
#include "lib/tokenizers/sentencepiece/sentencepiece_tokenizer.hpp"
#include "lib/tokenizers/vocabulary/token_texts.hpp"

namespace fsdp {
namespace {

enum class TokenizerKind { none, sentencepiece, json, byte_level, gguf };

/// The files that are read, in the order of transformers: tokenizer.json, else tokenizer.model, else vocab.json with
/// merges.txt; or a GGUF file.
TokenizerKind tokenizer_kind(const std::filesystem::path& directory) {
  const auto has = [&](const char* name) {
    std::error_code ignored;
    return std::filesystem::exists(directory / name, ignored);
  };
  if (has("tokenizer.json")) return TokenizerKind::json;
  if (has("tokenizer.model")) return TokenizerKind::sentencepiece;
  if (has("vocab.json") && has("merges.txt")) return TokenizerKind::byte_level;
  return has_gguf_tokenizer(directory) ? TokenizerKind::gguf : TokenizerKind::none;
}

/// Opens tokenizer.json, or tokenizer.model beside it when tokenizer.json is of an unsupported kind. A damaged
/// tokenizer.json is always an error.
/// \throws FormatError about tokenizer.json
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
    } catch (const FormatError&) {  // unsupported too, such as T5's: report the first error
    }
    throw;
  }
}

/// Character of GPT-2's alphabet for the byte at `place` of byte_alphabet(); printable bytes stand for themselves.
std::string alphabet_character(std::size_t place) {
  constexpr unsigned first_printable = 0x21, last_ascii = 0x7e;
  const auto alphabet = byte_alphabet();
  constexpr std::size_t num_printable = 188;  // the other bytes stand for U+0100 and the code points after it
  const unsigned code = place < num_printable ? alphabet[place] : 0x100 + static_cast<unsigned>(place - num_printable);
  if (code >= first_printable && code <= last_ascii) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};  // two bytes of UTF-8
}

/// Contents of tokenizer_files() by name, without config.json, which is the model's.
std::map<std::string, std::string> contents_of(const std::filesystem::path& directory) {
  if (is_gguf_file(directory)) return gguf_tokenizer_files(directory);
  std::map<std::string, std::string> files;
  for (const auto& file : tokenizer_files(directory))
    if (file.filename() != "config.json") files[file.filename().string()] = read_text_file(file);
  return files;
}

}  // namespace

bool has_tokenizer(const std::filesystem::path& directory) { return tokenizer_kind(directory) != TokenizerKind::none; }

bool is_sentencepiece_alone(const std::filesystem::path& directory) {
  return tokenizer_kind(directory) == TokenizerKind::sentencepiece;
}

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name) {
  if (name == kBuiltInTokenizer) return make_gpt2_tokenizer();
  const std::filesystem::path directory = name;
  const auto kind = tokenizer_kind(directory);
  if (kind == TokenizerKind::none) {
    throw MissingInput(name + ": holds no tokenizer; looked for tokenizer.json, tokenizer.model and vocab.json with " +
                       "merges.txt (the built-in one is called gpt2)");
  }
  const TokenizerConfig config = read_tokenizer_config(directory);
  if (kind == TokenizerKind::sentencepiece) return make_sentencepiece_tokenizer(directory / "tokenizer.model", config);
  if (kind == TokenizerKind::json) return open_json(directory, config);
  if (kind == TokenizerKind::gguf) return make_tokenizer_json(gguf_tokenizer_json(directory), name, config);
  return make_byte_level_bpe(directory / "vocab.json", directory / "merges.txt", config);
}

std::vector<std::filesystem::path> tokenizer_files(const std::filesystem::path& directory) {
  if (directory == kBuiltInTokenizer) return {};
  if (is_gguf_file(directory)) return {directory};
  std::vector<std::filesystem::path> files;
  // config.json names the class of the tokenizer when tokenizer_config.json does not.
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "tokenizer_config.json",
                           "special_tokens_map.json", "added_tokens.json", "config.json"}) {
    std::error_code ignored;
    if (std::filesystem::exists(directory / name, ignored)) files.push_back(directory / name);
  }
  return files;
}

void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to) {
  auto files = contents_of(from);
  std::error_code ignored;
  if (const char* name = "chat_template.jinja"; std::filesystem::is_regular_file(from / name, ignored))
    files[name] = read_text_file(from / name);
  for (const auto& [name, text] : files) replace_file(to / name, text);
}

bool same_tokenizer_files(const std::filesystem::path& a, const std::filesystem::path& b) {
  return contents_of(a) == contents_of(b);
}

std::map<std::string, std::string> named_special_tokens(const std::string& name) {
  std::map<std::string, std::string> tokens;
  if (name == kBuiltInTokenizer) return tokens;
  const std::filesystem::path directory = name;
  const auto config = read_tokenizer_config(directory);
  for (const auto& named : config.named_tokens)
    if (!named.key.empty()) tokens[named.key] = named.token.text;
  if (tokenizer_kind(directory) != TokenizerKind::sentencepiece) return tokens;
  for (const auto& [key, text] : marks_of_sentencepiece(directory / "tokenizer.model"))
    if (!config.is_null(key)) tokens.try_emplace(key, text);
  return tokens;
}

std::map<std::string, std::string> gpt2_tokenizer_files() {
  // The vocabulary follows from the merges: the alphabet, the result of each merge, <|endoftext|>.
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
