#include "lib/tokenizers/bpe/byte_level_bpe.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/tokenizers/bpe/byte_level_tokenizer.hpp"
#include "lib/tokenizers/files/json_file.hpp"
#include "lib/tokenizers/files/tokenizer_config.hpp"
#include "lib/tokenizers/vocabulary/token_texts.hpp"

namespace fsdp {
namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";

/// Reads merges, spelled as in the file.
std::vector<MergePair> parse_merges(std::string_view text, const std::string& name) {
  std::vector<MergePair> merges;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    const std::size_t space = line.find(' ');
    if (space == 0 || space == line.npos || space + 1 == line.size() || space != line.rfind(' ')) {
      throw FormatError(name + ": line " + std::to_string(number) + " is '" + std::string(line.substr(0, 60)) +
                        "', expected two pieces with one space between them");
    }
    merges.push_back({std::string(line.substr(0, space)), std::string(line.substr(space + 1))});
  }
  return merges;
}

/// Reads the pieces by id, spelled as in the file.
std::vector<std::string> read_pieces(const std::filesystem::path& file) {
  const auto json = read_json_object(file);
  std::vector<std::string> pieces(json.size());
  std::vector<bool> seen(json.size(), false);
  for (const auto& [piece, id] : json.items()) {
    const auto value = id.is_number_integer() ? id.get<std::int64_t>() : -1;
    if (value < 0 || value >= std::ssize(pieces) || element(seen, value)) {
      throw FormatError(file.string() + ": piece '" + piece + "' has id " + json_text(id) + ", expected the ids 0 to " +
                        std::to_string(pieces.size() - 1) + ", each once");
    }
    element(seen, value) = true;
    element(pieces, value) = piece;
  }
  return pieces;
}

/// Sets the patterns and flags that the tokenizer class gives to vocab.json and merges.txt; an empty name means GPT-2's
/// class.
void set_class(const TokenizerConfig& config, const std::string& where, ByteLevelParts& parts) {
  // Without tokenizer.json the class is the one that tokenizer_class names, unless AutoTokenizer chooses another.
  const std::string name = makes_byte_level_step(config.token_class) ? config.token_class : config.hub_class;
  if (!name.empty() && !makes_byte_level_step(name)) {
    throw FormatError(config.file + ": tokenizer_class: is " + name + ", whose vocab.json and merges.txt (" + where +
                      ") are not supported, expected GPT2Tokenizer, Qwen2Tokenizer or GPTNeoXTokenizer; "
                      "give its tokenizer.json, which save_pretrained() of transformers writes");
  }
  if (config.add_prefix_space.value_or(false)) refuse_prefix_space(config);
  parts.composes = name == "Qwen2Tokenizer" || name == "GPTNeoXTokenizer";
  parts.patterns.emplace_back(name == "Qwen2Tokenizer" ? qwen2_pattern() : gpt2_pattern());
}

/// \param pieces  spelled as in the file
std::vector<AddedToken> added_tokens_of(const std::vector<std::string>& pieces, const TokenizerConfig& config,
                                        const std::string& where) {
  const PieceIds ids(pieces);
  const auto find = [&](const std::string& name) {
    const std::int32_t id = ids.find(name);
    return id == PieceIds::kNoId ? std::nullopt : std::optional(id);
  };
  return all_added_tokens({where, std::ssize(pieces), find}, {}, config);
}

/// Sets marks. \param pieces  spelled as in the file
void set_marks(const std::vector<std::string>& pieces, const TokenizerConfig& config, ByteLevelParts& parts) {
  const PieceIds ids(pieces);
  const auto mark = [&](const std::optional<std::string>& name) -> std::optional<std::int32_t> {
    const std::string text = name.value_or(std::string(kEndOfText));
    for (const AddedToken& token : parts.added_tokens) {
      if (token.text == text) return token.id;
    }
    const std::int32_t id = ids.find(text);
    return id == PieceIds::kNoId ? std::nullopt : std::optional(id);
  };
  if (!config.is_null("bos_token")) parts.bos = mark(config.bos_token);
  if (!config.is_null("eos_token")) parts.eos = mark(config.eos_token);
  if (config.add_bos.value_or(false) && parts.bos) parts.marks.before.push_back(*parts.bos);
  if (config.add_eos.value_or(false) && parts.eos) parts.marks.after.push_back(*parts.eos);
}

std::unique_ptr<const Tokenizer> read_gpt2() {
  // GPT-2's vocabulary follows from its merges: the bytes in the order of the alphabet, the result of each merge,
  // <|endoftext|>.
  const std::string name = "built-in GPT-2 vocabulary";
  auto merges = parse_merges(detail::gpt2_merges_text(), name);
  for (auto& [left, right] : merges) left = bytes_of_piece(left), right = bytes_of_piece(right);
  std::vector<std::string> pieces;
  pieces.reserve(merges.size() + 257);
  for (const std::uint8_t byte : byte_alphabet()) pieces.emplace_back(1, static_cast<char>(byte));
  for (const auto& [left, right] : merges) pieces.push_back(left + right);
  pieces.emplace_back(kEndOfText);
  ByteLevelParts parts;
  parts.form = VocabularyForm::gpt2;
  parts.where = name;
  parts.merges = merge_table(merges, PieceIds(pieces), name);
  parts.patterns.emplace_back(gpt2_pattern());
  set_marks(pieces, {}, parts);
  parts.pieces = std::move(pieces);
  return std::make_unique<ByteLevelTokenizer>(std::move(parts));
}

/// GPT-2's tokenizer, made when something is first asked of it: most jobs that know no other read tokens, not texts,
/// and its 50,000 merges take as long as the rest of a rank's start.
class Gpt2Tokenizer final : public Tokenizer {
 public:
  std::vector<std::int32_t> encode(std::string_view text) const override { return whole().encode(text); }
  std::string decode(std::span<const std::int32_t> ids) const override { return whole().decode(ids); }
  std::string decode_one(std::int32_t id) const override { return whole().decode_one(id); }
  std::int64_t vocab_size() const override { return whole().vocab_size(); }
  std::int64_t required_rows() const override { return whole().required_rows(); }
  std::optional<std::int32_t> bos_id() const override { return whole().bos_id(); }
  std::optional<std::int32_t> eos_id() const override { return whole().eos_id(); }
  std::vector<std::int32_t> encode_document(std::string_view text, const StopTest& stop) const override {
    return whole().encode_document(text, stop);
  }
  AlignedIds encode_marked(std::string_view text, std::span<const TextRange> plain) const override {
    return whole().encode_marked(text, plain);
  }
  std::optional<std::int32_t> named_id(std::string_view name) const override { return whole().named_id(name); }
  const DocumentMarks& document_marks() const override { return whole().document_marks(); }
  VocabularyForm form() const override { return VocabularyForm::gpt2; }
  std::string description() const override { return whole().description(); }

 private:
  const Tokenizer& whole() const {
    std::call_once(made_, [this] { whole_ = read_gpt2(); });
    return *whole_;
  }

  mutable std::once_flag made_;
  mutable std::unique_ptr<const Tokenizer> whole_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_gpt2_tokenizer() { return std::make_unique<Gpt2Tokenizer>(); }

std::unique_ptr<Tokenizer> make_byte_level_bpe(const std::filesystem::path& vocab_json,
                                               const std::filesystem::path& merges_txt, const TokenizerConfig& config) {
  auto pieces = read_pieces(vocab_json);
  const auto merges = parse_merges(read_text_file(merges_txt), merges_txt.string());
  ByteLevelParts parts;
  parts.where = vocab_json.string();
  parts.added_tokens = added_tokens_of(pieces, config, parts.where);
  parts.merges = merge_table(merges, PieceIds(pieces), merges_txt.string());
  parts.set_pieces(pieces);
  set_class(config, parts.where, parts);
  set_marks(pieces, config, parts);
  return std::make_unique<ByteLevelTokenizer>(std::move(parts));
}

}  // namespace fsdp
