#include "lib/tokenizers/bpe/byte_level_tokenizer.hpp"

#include <algorithm>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/tokenizers/bpe/append_by_names.hpp"
#include "lib/tokenizers/files/tokenizer_config.hpp"
#include "lib/tokenizers/vocabulary/nfc.hpp"
#include "lib/tokenizers/vocabulary/token_texts.hpp"

namespace fsdp {

namespace {

TokenTexts texts_of(const ByteLevelParts& parts) {
  TokenTexts texts(parts.pieces);
  for (const auto& [id, text] : parts.unreached) texts.set(id, text);
  return texts;
}

/// Marks that are pieces but not added tokens, such as GPT-2's <|endoftext|>, count as special tokens.
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

void ByteLevelParts::set_pieces(const std::vector<std::string>& spelled) {
  pieces.clear();
  for (const auto& piece : spelled) {
    if (!is_spelled(piece)) unreached[static_cast<std::int32_t>(pieces.size())] = piece;
    pieces.push_back(is_spelled(piece) ? bytes_of_piece(piece) : std::string());
  }
}

ByteLevelTokenizer::ByteLevelTokenizer(ByteLevelParts parts)
    : form_(parts.form),
      file_(parts.where),
      piece_ids_(parts.pieces),
      texts_(texts_of(parts)),
      merges_(std::move(parts.merges)),
      words_(std::move(parts.patterns), std::move(parts.of_bytes)),
      composes_(parts.composes),
      added_tokens_(parts.added_tokens, SpecialNames::plain, [this](const auto& name) { return normalized(name); }),
      names_(with_marks(parts, texts_), SpecialNames::tokens, [this](const auto& name) { return normalized(name); }),
      marks_(std::move(parts.marks)),
      bos_(parts.bos),
      eos_(parts.eos),
      ignore_merges_(parts.ignore_merges) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto id = piece_ids_.find(std::string(1, static_cast<char>(byte)));
    if (id == PieceIds::kNoId) {
      throw FormatError(parts.where + ": has no piece for byte " + std::to_string(byte) +
                        ", expected a byte-level vocabulary with all 256");
    }
    element(byte_ids_, byte) = id;
  }
  // A name that is also a piece ("Ġthe") continues to stand for the bytes of the piece.
  std::erase_if(parts.added_tokens, [&](const AddedToken& token) {
    return token.id < texts_.size() && texts_.of(token.id) == bytes_of_piece(token.text);
  });
  add_to_vocabulary(parts.added_tokens, parts.where, texts_);
}

std::string ByteLevelTokenizer::normalized(const std::string& text) const { return composes_ ? to_nfc(text) : text; }

void ByteLevelTokenizer::append(std::string_view text, StopWatch& watch, std::vector<std::int32_t>& ids) const {
  std::string composed;
  if (composes_) {
    composed = to_nfc(text);
    text = composed;
  }
  for (const TextSegment& segment : added_tokens_.normalized().split(text)) {
    if (segment.id == TextSegment::kPlain) {
      append_words(segment.text, watch, ids);
    } else {
      ids.push_back(segment.id);
    }
  }
}

void ByteLevelTokenizer::append_word(std::string_view word, std::vector<std::int32_t>& scratch,
                                     std::vector<std::int32_t>& ids) const {
  if (ignore_merges_) {
    if (const auto id = piece_ids_.find(word); id != PieceIds::kNoId) {
      ids.push_back(id);
      return;
    }
  }
  scratch.clear();
  for (const char byte : word) scratch.push_back(byte_ids_[static_cast<std::uint8_t>(byte)]);
  merges_.apply(scratch, ids);
}

void ByteLevelTokenizer::append_words(std::string_view text, StopWatch& watch, std::vector<std::int32_t>& ids) const {
  std::vector<std::string_view> words;
  words_.split(text, words);
  std::vector<std::int32_t> scratch;
  for (const std::string_view word : words) {
    append_word(word, scratch, ids);
    watch.step();
  }
}

std::vector<std::int32_t> ByteLevelTokenizer::encode(std::string_view text) const { return encode_text(text, {}); }

std::vector<std::int32_t> ByteLevelTokenizer::encode_text(std::string_view text, const StopTest& stop) const {
  StopWatch watch(stop);
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 3);
  if (added_tokens_.raw().empty()) {
    append(text, watch, ids);
    return ids;
  }
  for (const TextSegment& segment : added_tokens_.raw().split(text)) {
    if (segment.id == TextSegment::kPlain) {
      append(segment.text, watch, ids);
    } else {
      ids.push_back(segment.id);
    }
  }
  return ids;
}

void ByteLevelTokenizer::append_aligned_words(std::string_view text, std::string_view part, AlignedIds& out) const {
  std::vector<std::string_view> words;
  words_.split(part, words);
  std::vector<std::int32_t> scratch;
  for (const std::string_view word : words) {
    const std::size_t first = out.ids.size();
    append_word(word, scratch, out.ids);
    auto at = to_index(word.data() - text.data());
    const std::size_t word_end = at + word.size();
    for (std::size_t i = first; i < out.ids.size(); ++i) {
      const std::size_t end = at + texts_.of(out.ids[i]).size();
      if (end > word_end || end == at)  // an added token has replaced a piece
        throw RuntimeFailure(description() +
                             ": a text's ids do not stand for its bytes, so answers cannot be found in them");
      out.parts.push_back({at, end});
      at = end;
    }
  }
}

void ByteLevelTokenizer::append_aligned(std::string_view text, std::size_t begin, std::span<const TextRange> plain,
                                        AlignedIds& out) const {
  const auto composed = composes_ ? to_nfc(text) : std::string();
  const bool changed = composes_ && composed != text;
  const auto sources = changed ? nfc_sources(text, composed) : std::vector<TextRange>();
  const auto source_of = [&](TextRange part) {
    return changed ? TextRange{begin + sources[part.begin].begin, begin + sources[part.end - 1].end}
                   : TextRange{begin + part.begin, begin + part.end};
  };
  const auto is_plain = [&](TextRange part) {
    const auto source = source_of(part);
    return overlaps(plain, source.begin, source.end);
  };
  const std::string_view normalized = changed ? std::string_view(composed) : text;
  const std::size_t first = out.parts.size();
  detail::append_by_names(names_.normalized(), normalized, is_plain, out,
                          [&](std::string_view part, std::size_t) { append_aligned_words(normalized, part, out); });
  for (std::size_t i = first; i < out.parts.size(); ++i) out.parts[i] = source_of(out.parts[i]);
}

AlignedIds ByteLevelTokenizer::encode_marked(std::string_view text, std::span<const TextRange> plain) const {
  AlignedIds out;
  const auto is_plain = [&](TextRange part) { return overlaps(plain, part.begin, part.end); };
  detail::append_by_names(names_.raw(), text, is_plain, out,
                          [&](std::string_view part, std::size_t begin) { append_aligned(part, begin, plain, out); });
  return out;
}

std::vector<std::int32_t> ByteLevelTokenizer::encode_document(std::string_view text, const StopTest& stop) const {
  return marks_.around(encode_text(text, stop));
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
    table.add(left_id, right_id, merged_id);
  }
  return table;
}

}  // namespace fsdp
