#include "lib/tokenizers/bpe/metaspace_tokenizer.hpp"

#include <charconv>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/tokenizers/bpe/append_by_names.hpp"

namespace fsdp {
namespace {

/// Returns the byte of a piece "<0x0A>", or -1.
int byte_of_piece(std::string_view piece) {
  int byte = -1;
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  const auto [end, error] = std::from_chars(piece.data() + 3, piece.data() + 5, byte, 16);
  return error == std::errc() && end == piece.data() + 5 ? byte : -1;
}

std::string with_spaces(std::string_view piece) {
  std::string text;
  while (!piece.empty()) {
    if (piece.starts_with(kSpaceSign)) {
      text += ' ';
      piece.remove_prefix(kSpaceSign.size());
    } else {
      text += piece.front();
      piece.remove_prefix(1);
    }
  }
  return text;
}

std::string text_of(const LlamaPiece& piece, const std::string& where) {
  switch (piece.kind) {
    case LlamaPiece::Kind::control:
      return {};
    case LlamaPiece::Kind::literal:
      return piece.text;
    case LlamaPiece::Kind::text:
      return with_spaces(piece.text);
    case LlamaPiece::Kind::byte:
      break;
  }
  const int byte = byte_of_piece(piece.text);
  if (byte < 0) throw FormatError(where + ": byte piece '" + piece.text + "' is not of the form <0x0A>");
  return std::string(1, static_cast<char>(byte));
}

TokenTexts texts_of(const LlamaParts& parts) {
  TokenTexts texts(std::vector<std::string>{});
  for (const LlamaPiece& piece : parts.pieces)
    texts.set(static_cast<std::int32_t>(texts.size()), text_of(piece, parts.where), piece.is_optional);
  return texts;
}

}  // namespace

MetaspaceTokenizer::MetaspaceTokenizer(LlamaParts parts, AddedTokenSearch names)
    : form_(parts.form),
      file_(parts.where),
      texts_(texts_of(parts)),
      begins_with_space_(parts.pieces.size()),
      is_byte_(parts.pieces.size()),
      byte_ids_(256, -1),
      dummy_prefix_(parts.dummy_prefix),
      strips_spaces_(parts.strips_spaces),
      bos_(parts.bos),
      eos_(parts.eos),
      marks_(std::move(parts.marks)),
      names_(std::move(names)),
      infill_(parts.infill) {
  for (std::size_t id = 0; id < parts.pieces.size(); ++id) {
    const LlamaPiece& piece = parts.pieces[id];
    begins_with_space_[id] = piece.kind == LlamaPiece::Kind::text && piece.text.starts_with(kSpaceSign);
    if (piece.kind != LlamaPiece::Kind::byte) continue;
    is_byte_[id] = true;
    auto& known = element(byte_ids_, byte_of_piece(piece.text));
    if (known == -1) known = static_cast<std::int32_t>(id);
  }
  for (std::size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    if (byte_ids_[byte] == -1) {
      throw FormatError(parts.where + ": has no piece for byte " + std::to_string(byte) +
                        "; only vocabularies with byte fallback encode every text without loss");
    }
  }
}

bool MetaspaceTokenizer::is_byte(std::int32_t id) const {
  const auto place = to_index(id);
  return id >= 0 && place < is_byte_.size() && is_byte_[place];
}

std::vector<std::int32_t> MetaspaceTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 3 + 4);
  const StopTest never;
  StopWatch watch(never);
  append(text, dummy_prefix_, watch, ids);
  return ids;
}

std::vector<std::int32_t> MetaspaceTokenizer::encode_document(std::string_view text, const StopTest& stop) const {
  StopWatch watch(stop);
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 3 + 4);
  ids.insert(ids.end(), marks_.before.begin(), marks_.before.end());
  append(text, dummy_prefix_, watch, ids);
  ids.insert(ids.end(), marks_.after.begin(), marks_.after.end());
  return ids;
}

AlignedIds MetaspaceTokenizer::encode_marked(std::string_view text, std::span<const TextRange> plain) const {
  AlignedIds out;
  const auto is_plain = [&](TextRange part) { return overlaps(plain, part.begin, part.end); };
  detail::append_by_names(names_.raw(), text, is_plain, out,
                          [&](std::string_view part, std::size_t begin) { append_aligned(part, begin, plain, out); });
  return out;
}

/// Walks through the decoded bytes of the ids and the bytes of the text side by side.
void MetaspaceTokenizer::align(std::string_view text, std::size_t begin, AlignedIds& out) const {
  const auto new_ids = std::span(out.ids).subspan(out.parts.size());
  std::size_t decoded_bytes = 0;
  for (const auto id : new_ids) decoded_bytes += texts_.of(id).size();
  const std::size_t text_bytes = with_spaces(text).size();
  bool skip = decoded_bytes == text_bytes + 1;  // the space that was put before the text
  if (!skip && decoded_bytes != text_bytes)
    throw RuntimeFailure(description() +
                         ": a text's ids do not stand for its bytes, so answers cannot be found in them");
  std::size_t at = 0;
  for (const auto id : new_ids) {
    TextRange part{begin + at, 0};
    for (const char byte : texts_.of(id)) {
      if (!std::exchange(skip, false))
        at += byte == ' ' && text.substr(at).starts_with(kSpaceSign) ? kSpaceSign.size() : 1;
    }
    part.end = begin + at;
    out.parts.push_back(part);
  }
}

std::vector<std::int32_t> MetaspaceTokenizer::encode_infill(std::string_view prefix, std::string_view suffix) const {
  if (!infill_) return Tokenizer::encode_infill(prefix, suffix);
  std::vector<std::int32_t> ids = marks_.before;
  ids.push_back(infill_->prefix);
  const StopTest never;
  StopWatch watch(never);
  append(prefix, dummy_prefix_, watch, ids);
  ids.push_back(infill_->suffix);
  append(suffix, false, watch, ids);
  ids.push_back(infill_->middle);
  return ids;
}

std::string MetaspaceTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  bool begins = dummy_prefix_ || strips_spaces_;
  for (const std::int32_t id : ids) {
    std::string_view piece = texts_.of(id);
    if (piece.empty()) continue;
    if (begins && element(begins_with_space_, id)) piece.remove_prefix(1);
    text += piece;
    begins = strips_spaces_ && text.empty();
  }
  return text;
}

void to_sources(const NormalizedText& normalized, std::size_t begin, std::size_t first, std::vector<TextRange>& parts) {
  for (std::size_t i = first; i < parts.size(); ++i)
    parts[i] = {begin + normalized.origins[parts[i].begin], begin + normalized.origins[parts[i].end]};
}

void add_tokens(const std::vector<AddedToken>& tokens, const std::string& where, std::vector<LlamaPiece>& pieces) {
  std::vector<std::string> names;
  names.reserve(pieces.size());
  for (const LlamaPiece& piece : pieces) names.push_back(piece.text);
  TokenTexts texts(std::move(names));
  add_to_vocabulary(tokens, where, texts);
  const auto num_pieces = std::ssize(pieces);
  pieces.resize(static_cast<std::size_t>(texts.size()), LlamaPiece{"", LlamaPiece::Kind::literal});
  for (const AddedToken& token : tokens) {
    LlamaPiece& piece = element(pieces, token.id);
    if (token.id >= num_pieces || piece.text != token.text) piece = {token.text, LlamaPiece::Kind::literal};
    piece.is_optional = token.is_optional && token.id >= num_pieces;
  }
}

std::optional<std::int32_t> find_piece(const std::vector<LlamaPiece>& pieces, std::string_view text) {
  for (std::size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].text == text) return static_cast<std::int32_t>(id);
  }
  return {};
}

std::optional<InfillIds> find_infill_ids(const std::vector<LlamaPiece>& pieces, const TokenizerConfig& config) {
  const auto prefix = find_piece(pieces, config.prefix_token);
  const auto suffix = find_piece(pieces, config.suffix_token);
  const auto middle = find_piece(pieces, config.middle_token);
  const auto end = find_piece(pieces, config.end_token);
  if (!prefix || !suffix || !middle || !end) return {};
  return InfillIds{*prefix, *suffix, *middle, *end};
}

bool splits_before_spaces(const std::vector<LlamaPiece>& pieces) {
  for (const LlamaPiece& piece : pieces) {
    if (piece.kind == LlamaPiece::Kind::literal) continue;
    bool only_spaces = true;
    for (std::string_view rest = piece.text; !rest.empty();) {
      // A user-defined piece may contain a space itself.
      const bool space = rest.starts_with(kSpaceSign) || rest.front() == ' ';
      if (space && !only_spaces) return false;
      only_spaces = only_spaces && space;
      rest.remove_prefix(rest.starts_with(kSpaceSign) ? kSpaceSign.size() : 1);
    }
  }
  return true;
}

}  // namespace fsdp
