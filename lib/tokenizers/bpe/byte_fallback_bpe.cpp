#include "lib/tokenizers/bpe/byte_fallback_bpe.hpp"

#include <utility>

#include "lib/base/text/utf8.hpp"
#include "lib/base/types/index.hpp"
#include "lib/tokenizers/bpe/append_by_names.hpp"

namespace fsdp {
namespace {

/// Packs the bytes of a character, at most four, into a number.
std::uint32_t key_of(std::string_view character) {
  std::uint32_t key = 0;
  for (const char byte : character) key = (key << 8) | static_cast<std::uint8_t>(byte);
  return key;
}

NormalizedText with_space_signs(std::string_view text, bool prefixed, bool replaces) {
  NormalizedText normalized{"", TextPlaces(text.size())};
  const auto add_sign = [&](std::size_t origin) {
    normalized.text += kSpaceSign;
    normalized.origins.add(origin, kSpaceSign.size());
  };
  if (prefixed && !text.empty()) add_sign(0);
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (replaces && text[at] == ' ') {
      add_sign(at);
      continue;
    }
    normalized.text += text[at];
    normalized.origins.add(at);
  }
  normalized.origins.add(text.size());
  return normalized;
}

/// Normalizes the name of a token in the same way as texts.
AddedTokenSearch names_in(const ByteFallbackParts& parts, SpecialNames special) {
  return AddedTokenSearch(parts.added_tokens, special, [&](const std::string& name) {
    return with_space_signs(name, parts.prefix == SpacePrefix::prepend, parts.normalizes_spaces).text;
  });
}

}  // namespace

ByteFallbackBpe::ByteFallbackBpe(ByteFallbackParts parts)
    : MetaspaceTokenizer(parts.llama, names_in(parts, SpecialNames::tokens)),
      merges_(std::move(parts.merges)),
      added_tokens_(names_in(parts, SpecialNames::plain)),
      prefix_(parts.prefix),
      normalizes_spaces_(parts.normalizes_spaces),
      split_at_spaces_(parts.split_at_spaces),
      splits_before_spaces_(splits_before_spaces(parts.llama.pieces)) {
  ascii_ids_.fill(PieceIds::kNoId);
  for (std::size_t id = 0; id < parts.llama.pieces.size(); ++id) {
    const LlamaPiece& piece = parts.llama.pieces[id];
    const std::string& text = piece.text;
    const std::size_t length = utf8_character_length(text);
    if (length == 0 || length != text.size() || piece.kind == LlamaPiece::Kind::literal) continue;
    if (length == 1) element(ascii_ids_, text[0]) = static_cast<std::int32_t>(id);
    character_ids_.emplace(key_of(text), static_cast<std::int32_t>(id));
  }
}

bool ByteFallbackBpe::wants_prefix(std::string_view text, bool begins) const {
  if (text.empty() || utf8_character_length(text) == 0) return false;
  if (prefix_ == SpacePrefix::none) return false;
  if (prefix_ == SpacePrefix::prepend) return true;
  if (prefix_ == SpacePrefix::metaspace_first && !begins) return false;
  return !text.starts_with(' ') && !text.starts_with(kSpaceSign);
}

NormalizedText ByteFallbackBpe::normalize(std::string_view text, bool prefixed) const {
  return with_space_signs(text, prefixed, normalizes_spaces_);
}

void ByteFallbackBpe::append(std::string_view text, bool dummy_prefix, StopWatch& watch,
                             std::vector<std::int32_t>& ids) const {
  if (added_tokens_.empty()) return append_plain(text, dummy_prefix && wants_prefix(text, true), watch, ids);
  for (const TextSegment& segment : added_tokens_.raw().split(text)) {
    if (segment.id != TextSegment::kPlain) {
      ids.push_back(segment.id);
      continue;
    }
    const Part part{segment.text, to_index(segment.text.data() - text.data()),
                    dummy_prefix || segment.text.data() != text.data()};
    if (added_tokens_.normalized().empty()) {
      append_plain(part.text, part.may_prefix && wants_prefix(part.text, part.begin == 0), watch, ids);
    } else {
      AlignedIds found;
      append_normalized(part, added_tokens_.normalized(), {}, found);
      ids.insert(ids.end(), found.ids.begin(), found.ids.end());
    }
  }
}

void ByteFallbackBpe::append_aligned(std::string_view part, std::size_t begin, std::span<const TextRange> plain,
                                     AlignedIds& out) const {
  if (!names().normalized().empty())
    return append_normalized({part, begin, dummy_prefix()}, names().normalized(), plain, out);
  const StopTest never;
  StopWatch watch(never);
  append_plain(part, dummy_prefix() && wants_prefix(part, begin == 0), watch, out.ids);
  align(part, begin, out);
}

void ByteFallbackBpe::append_normalized(const Part& part, const TokenNames& names, std::span<const TextRange> plain,
                                        AlignedIds& out) const {
  const bool prepends = prefix_ == SpacePrefix::prepend;
  const auto normalized = normalize(part.text, prepends && part.may_prefix && wants_prefix(part.text, true));
  const auto is_plain = [&](TextRange found) {
    return overlaps(plain, part.begin + normalized.origins[found.begin], part.begin + normalized.origins[found.end]);
  };
  const std::size_t first = out.parts.size();
  const StopTest never;
  StopWatch watch(never);
  detail::append_by_names(names, normalized.text, is_plain, out, [&](std::string_view text, std::size_t at) {
    const bool begins = part.begin == 0 && at == 0;
    append_plain(text, !prepends && part.may_prefix && wants_prefix(text, begins), watch, out.ids);
    align(text, at, out);
  });
  to_sources(normalized, part.begin, first, out.parts);
}

void ByteFallbackBpe::append_character(std::string_view character, std::vector<std::int32_t>& word) const {
  std::int32_t id = PieceIds::kNoId;
  if (character.size() == 1) {
    id = element(ascii_ids_, character[0]);
  } else if (const auto found = character_ids_.find(key_of(character)); found != character_ids_.end()) {
    id = found->second;
  }
  if (id != PieceIds::kNoId) {
    word.push_back(id);
    return;
  }
  for (const char byte : character) word.push_back(byte_ids()[static_cast<std::uint8_t>(byte)]);
}

void ByteFallbackBpe::append_plain(std::string_view text, bool with_prefix, StopWatch& watch,
                                   std::vector<std::int32_t>& ids) const {
  std::vector<std::int32_t> word;
  const auto end_word = [&] {
    merges_.apply(word, ids);
    word.clear();
    watch.step();
  };
  bool after_space = false;
  if (with_prefix) {
    append_character(kSpaceSign, word);
    after_space = true;
  }
  while (!text.empty()) {
    const std::size_t length = utf8_character_length(text);
    if (length == 0) {  // a byte that begins no character: nothing merges with it
      end_word();
      ids.push_back(byte_ids()[static_cast<std::uint8_t>(text.front())]);
      text.remove_prefix(1);
      after_space = false;
      continue;
    }
    const std::string_view character = text.front() == ' ' ? kSpaceSign : text.substr(0, length);
    const bool space = character == kSpaceSign;
    if (space && (split_at_spaces_ || (splits_before_spaces_ && !after_space))) end_word();
    append_character(character, word);
    after_space = space;
    text.remove_prefix(length);
  }
  end_word();
}

}  // namespace fsdp
