#include "lib/text/tokenizer/llama_class.hpp"

#include <algorithm>
#include <utility>

#include "lib/text/tokenizer/byte_fallback_bpe.hpp"
#include "lib/text/tokenizer/byte_level_tokenizer.hpp"
#include "lib/text/tokenizer/utf8.hpp"

namespace fsdp {
namespace {

using Type = SentencePieceModel::Type;

LlamaPiece llama_piece(const SentencePieceModel::Piece& piece, const SentencePieceModel& model) {
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

/// Every way to make a piece of two others, by the piece's id, then the shorter left part.
std::vector<MergePair> merges_of(const std::vector<std::string>& texts, const PieceIds& ids) {
  std::vector<MergePair> merges;
  for (const auto& text : texts) {
    for (std::size_t at = utf8_character_length(text); at < text.size();
         at += utf8_character_length(std::string_view(text).substr(at))) {
      MergePair pair{text.substr(0, at), text.substr(at)};
      const bool are_pieces = ids.find(pair.left) != PieceIds::kNoId && ids.find(pair.right) != PieceIds::kNoId;
      if (are_pieces) merges.push_back(std::move(pair));
    }
  }
  return merges;
}

}  // namespace

std::vector<LlamaPiece> llama_pieces(const SentencePieceModel& model) {
  std::vector<LlamaPiece> pieces;
  for (const auto& piece : model.pieces) pieces.push_back(llama_piece(piece, model));
  return pieces;
}

LlamaParts llama_parts(const SentencePieceModel& model, const TokenizerConfig& config,
                       const std::vector<AddedToken>& added, const std::string& where) {
  LlamaParts parts;
  parts.where = where;
  parts.pieces = llama_pieces(model);
  add_tokens(added, config.where, parts.pieces);
  parts.bos = find_piece(parts.pieces, config.bos_token.value_or(model.bos_text));
  parts.eos = find_piece(parts.pieces, config.eos_token.value_or(model.eos_text));
  if (config.add_bos.value_or(true) && parts.bos) parts.marks.before.push_back(*parts.bos);
  if (config.add_eos.value_or(false) && parts.eos) parts.marks.after.push_back(*parts.eos);
  parts.infill = find_infill_ids(parts.pieces, config);
  return parts;
}

bool is_made_by_llama_class(const SentencePieceModel& model, const TokenizerConfig& config,
                            const std::vector<AddedToken>& added) {
  const auto is_new = [&](const AddedToken& token) {
    return static_cast<std::size_t>(token.id) >= model.pieces.size();
  };
  return config.hub_class == "LlamaTokenizer" && (config.legacy || std::any_of(added.begin(), added.end(), is_new));
}

std::unique_ptr<Tokenizer> make_by_llama_class(const SentencePieceModel& model, const TokenizerConfig& config,
                                               std::vector<AddedToken> added, LlamaParts parts) {
  std::vector<std::string> texts;
  for (const auto& piece : model.pieces) texts.push_back(piece.text);
  const PieceIds ids(texts);
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& [text, type] = model.pieces[id];
    const auto has = [&](const AddedToken& token) { return token.id == static_cast<std::int32_t>(id); };
    if (type != Type::control && type != Type::user_defined && type != Type::unknown) continue;
    if (std::any_of(added.begin(), added.end(), has)) continue;
    added.push_back({.id = static_cast<std::int32_t>(id), .text = text, .special = type != Type::user_defined});
  }
  ByteFallbackParts bpe;
  bpe.merges = merge_table(merges_of(texts, ids), ids, parts.where);
  bpe.llama = std::move(parts);
  if (config.add_prefix_space.value_or(true))
    bpe.prefix = config.legacy.value_or(false) ? SpacePrefix::metaspace_always : SpacePrefix::metaspace_first;
  bpe.llama.dummy_prefix = bpe.prefix != SpacePrefix::none;
  bpe.llama.strips_spaces = false;
  bpe.added_tokens = std::move(added);
  return std::make_unique<ByteFallbackBpe>(std::move(bpe));
}

}  // namespace fsdp
