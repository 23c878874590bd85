#include "lib/tokenizer/byte_level_tokenizer.hpp"

#include <algorithm>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/tokenizer/nfc.hpp"
#include "lib/tokenizer/tokenizer_config.hpp"

namespace fsdp {

namespace {

/// Marks that are pieces and no added tokens, as GPT-2's <|endoftext|>, are special all the same.
std::vector<AddedToken> with_marks(const ByteLevelParts& parts, const TokenTexts& texts) {
  auto tokens = parts.added_tokens;
  for (const auto& id : {parts.bos, parts.eos}) {
    const auto has = [&](const AddedToken& token) { return token.id == *id; };
    if (id && *id < texts.size() && std::none_of(tokens.begin(), tokens.end(), has)) {
      tokens.push_back({.id = *id, .text = texts.of(*id)});
    }
  }
  return tokens;
}

}  // namespace

ByteLevelTokenizer::ByteLevelTokenizer(ByteLevelParts parts)
    : description_(std::move(parts.description)),
      piece_ids_(parts.pieces),
      texts_(std::move(parts.pieces)),
      merges_(std::move(parts.merges)),
      words_(std::move(parts.patterns)),
      added_tokens_(parts.added_tokens, parts.where),
      names_(with_marks(parts, texts_), parts.where, SpecialNames::tokens),
      marks_(std::move(parts.marks)),
      bos_(parts.bos),
      eos_(parts.eos),
      composes_(parts.composes),
      ignore_merges_(parts.ignore_merges) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto id = piece_ids_.find(std::string(1, static_cast<char>(byte)));
    if (id == PieceIds::kNoId) {
      throw FormatError(parts.where + ": has no piece for byte " + std::to_string(byte) +
                        ", expected a byte-level vocabulary with all 256");
    }
    byte_ids_[static_cast<std::size_t>(byte)] = id;
  }
  add_to_vocabulary(parts.added_tokens, parts.where, texts_);
}

void ByteLevelTokenizer::append(std::string_view text, std::vector<std::int32_t>& ids) const {
  if (!composes_) return append_words(text, ids);
  append_words(to_nfc(text), ids);
}

void ByteLevelTokenizer::append_words(std::string_view text, std::vector<std::int32_t>& ids) const {
  std::vector<std::string_view> words;
  words_.split(text, words);
  std::vector<std::int32_t> word_ids;
  for (const std::string_view word : words) {
    if (ignore_merges_) {
      if (const auto id = piece_ids_.find(word); id != PieceIds::kNoId) {
        ids.push_back(id);
        continue;
      }
    }
    word_ids.clear();
    for (const char byte : word) word_ids.push_back(byte_ids_[static_cast<std::uint8_t>(byte)]);
    merges_.apply(word_ids, ids);
  }
}

std::vector<std::int32_t> ByteLevelTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 3);
  if (added_tokens_.empty()) {
    append(text, ids);
    return ids;
  }
  for (const TextSegment& segment : added_tokens_.split(text)) {
    if (segment.id == TextSegment::kPlain) {
      append(segment.text, ids);
    } else {
      ids.push_back(segment.id);
    }
  }
  return ids;
}

void ByteLevelTokenizer::append_aligned(std::string_view text, std::size_t begin, AlignedIds& out) const {
  const auto composed = composes_ ? to_nfc(text) : std::string();
  const bool changed = composes_ && composed != text;
  const auto sources = changed ? nfc_sources(text, composed) : std::vector<TextRange>();
  append_words(changed ? composed : text, out.ids);
  const std::size_t bytes = changed ? composed.size() : text.size();
  std::size_t at = 0;
  for (std::size_t i = out.parts.size(); i < out.ids.size(); ++i) {
    const std::size_t end = at + texts_.of(out.ids[i]).size();
    if (end > bytes || end == at)  // an added token has taken the id of a piece
      throw RuntimeFailure(description() +
                           ": a text's ids do not stand for its bytes, so answers cannot be found in them");
    out.parts.push_back(changed ? TextRange{begin + sources[at].begin, begin + sources[end - 1].end}
                                : TextRange{begin + at, begin + end});
    at = end;
  }
}

AlignedIds ByteLevelTokenizer::encode_marked(std::string_view text, std::span<const TextRange> plain) const {
  AlignedIds out;
  for (const TextSegment& segment : names_.split(text, plain)) {
    const auto begin = static_cast<std::size_t>(segment.text.data() - text.data());
    if (segment.id == TextSegment::kPlain) {
      append_aligned(segment.text, begin, out);
    } else {
      out.ids.push_back(segment.id);
      out.parts.push_back({begin, begin + segment.text.size()});
    }
  }
  return out;
}

std::vector<std::int32_t> ByteLevelTokenizer::encode_document(std::string_view text) const {
  return marks_.around(encode(text));
}

std::string ByteLevelTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) text += texts_.of(id);
  return text;
}

BpeMerges merge_table(const std::vector<MergePair>& merges, const PieceIds& pieces, const std::string& where) {
  BpeMerges table;
  table.reserve(merges.size());
  for (const auto& [left, right] : merges) {
    const auto left_id = pieces.find(left);
    const auto right_id = pieces.find(right);
    const auto merged_id = pieces.find(left + right);
    if (left_id == PieceIds::kNoId || right_id == PieceIds::kNoId || merged_id == PieceIds::kNoId) {
      throw FormatError(where + ": merge of '" + left + "' and '" + right +
                        "' uses a piece that the vocabulary does not have; do the two belong together?");
    }
    if (!table.add(left_id, right_id, merged_id)) {
      throw FormatError(where + ": merge of '" + left + "' and '" + right + "' is there twice");
    }
  }
  return table;
}

}  // namespace fsdp
