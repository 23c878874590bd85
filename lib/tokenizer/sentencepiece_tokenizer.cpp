#include "lib/tokenizer/sentencepiece_tokenizer.hpp"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/tokenizer/llama_tokenizer.hpp"
#include "lib/tokenizer/sentencepiece_model.hpp"
#include "lib/tokenizer/utf8.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t kMaxModelBytes = 64u << 20;  // Llama's has 0.5 MB
constexpr std::size_t kPartBytes = 4096;             // the library takes longer per byte for longer texts

/// normalizer_spec { add_dummy_prefix: false }, which behind a serialized model replaces what the model says.
constexpr std::string_view kNoDummyPrefix("\x1A\x02\x18\x00", 4);

void load(sentencepiece::SentencePieceProcessor& processor, const std::string& serialized, const std::string& file) {
  const auto status = processor.LoadFromSerializedProto(serialized);
  if (!status.ok()) throw FormatError(file + ": SentencePiece refuses the model: " + status.ToString());
}

class SentencePieceTokenizer final : public LlamaTokenizer {
 public:
  SentencePieceTokenizer(const LlamaParts& parts, AddedTokenSearch names, const std::string& serialized,
                         bool splits_before_spaces)
      : LlamaTokenizer(parts, std::move(names)), splits_before_spaces_(splits_before_spaces) {
    load(inside_, serialized + std::string(kNoDummyPrefix), parts.where);
    load(beginning_, serialized + std::string("\x1A\x02\x18\x01", 4), parts.where);
  }

 protected:
  void append(std::string_view text, bool dummy_prefix, std::vector<std::int32_t>& ids) const override {
    std::vector<int> part_ids;
    while (!text.empty()) {
      const std::size_t valid = utf8_valid_prefix(text);
      std::string_view rest = text.substr(0, valid);
      while (!rest.empty()) {
        const std::string_view part = rest.substr(0, part_length(rest));
        const auto& processor = dummy_prefix ? beginning_ : inside_;
        const auto status = processor.Encode(absl::string_view(part.data(), part.size()), &part_ids);
        if (!status.ok()) throw RuntimeFailure("SentencePiece cannot encode a text: " + status.ToString());
        ids.insert(ids.end(), part_ids.begin(), part_ids.end());
        rest.remove_prefix(part.size());
        dummy_prefix = false;
      }
      text.remove_prefix(valid);
      // The library would replace these bytes by U+FFFD.
      while (!text.empty() && utf8_character_length(text) == 0) {
        ids.push_back(byte_ids()[static_cast<std::uint8_t>(text.front())]);
        text.remove_prefix(1);
        dummy_prefix = false;
      }
    }
  }

  /// Turn by turn: each part is a text of its own.
  void append_part(std::string_view text, bool, std::vector<std::int32_t>& ids) const override {
    append(text, dummy_prefix(), ids);
  }

 private:
  /// How much of `text` to encode at once: up to a space with another character before it.
  std::size_t part_length(std::string_view text) const {
    if (!splits_before_spaces_) return text.size();
    for (std::size_t at = kPartBytes; at < text.size(); ++at) {
      if (text[at] != ' ' || text[at - 1] == ' ' || text.substr(0, at).ends_with(kSpaceSign)) continue;
      return at;
    }
    return text.size();
  }

  sentencepiece::SentencePieceProcessor beginning_;  ///< puts a space before a text
  sentencepiece::SentencePieceProcessor inside_;     ///< takes a text as it is
  bool splits_before_spaces_;
};

LlamaPiece llama_piece(const SentencePieceModel::Piece& piece, const SentencePieceModel& model) {
  using Type = SentencePieceModel::Type;
  switch (piece.type) {
    case Type::control:
      return {piece.text, LlamaPiece::Kind::control};
    case Type::byte:
      return {piece.text, LlamaPiece::Kind::byte};
    case Type::unknown:
      return {model.unknown_text, LlamaPiece::Kind::literal};
    default:
      return {piece.text, LlamaPiece::Kind::text};
  }
}

/// The added tokens and the model's own marks, each matched as it stands.
std::vector<AddedToken> named_tokens(const SentencePieceModel& model, const std::vector<AddedToken>& added) {
  std::vector<AddedToken> tokens;
  for (const AddedToken& token : added) tokens.push_back({.id = token.id, .text = token.text});
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& piece = model.pieces[id];
    if (piece.type != SentencePieceModel::Type::control && piece.type != SentencePieceModel::Type::unknown) continue;
    const auto has = [&](const AddedToken& token) { return token.text == piece.text; };
    if (std::none_of(tokens.begin(), tokens.end(), has))
      tokens.push_back({.id = static_cast<std::int32_t>(id), .text = piece.text});
  }
  return tokens;
}

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::filesystem::path& file,
                                                        const TokenizerConfig& config) {
  const auto model = parse_sentencepiece_model(read_text_file(file, kMaxModelBytes), file.string());
  LlamaParts parts;
  parts.where = file.string();
  parts.description = "SentencePiece BPE of " + file.string();
  for (const auto& piece : model.pieces) parts.pieces.push_back(llama_piece(piece, model));
  const auto special = [&](const std::optional<std::string>& name, std::string_view otherwise) {
    return find_piece(parts.pieces, name ? std::string_view(*name) : otherwise);
  };
  const bool splits = splits_before_spaces(parts.pieces);
  add_tokens(config.added_tokens, config.where, parts.pieces);
  parts.bos = special(config.bos_token, "<s>");
  parts.eos = special(config.eos_token, "</s>");
  parts.dummy_prefix = model.dummy_prefix && config.add_prefix_space.value_or(true);
  if (config.add_bos.value_or(true) && parts.bos) parts.marks.before.push_back(*parts.bos);
  if (config.add_eos.value_or(false) && parts.eos) parts.marks.after.push_back(*parts.eos);
  parts.infill = find_infill_ids(parts.pieces, config);
  AddedTokenSearch names(named_tokens(model, config.added_tokens), parts.where, SpecialNames::tokens);
  return std::make_unique<SentencePieceTokenizer>(parts, std::move(names), model.serialized, splits);
}

}  // namespace fsdp
