#include "lib/tokenizer/byte_fallback_bpe.hpp"

#include <utility>

#include "lib/tokenizer/utf8.hpp"

namespace fsdp {
namespace {

/// The bytes of a character of up to four as a number.
std::uint32_t key_of(std::string_view character) {
  std::uint32_t key = 0;
  for (const char byte : character) key = (key << 8) | static_cast<std::uint8_t>(byte);
  return key;
}

}  // namespace

ByteFallbackBpe::ByteFallbackBpe(ByteFallbackParts parts)
    : LlamaTokenizer(parts.llama, names_of(parts)),
      merges_(std::move(parts.merges)),
      added_tokens_(parts.added_tokens, parts.llama.where),
      prefix_(parts.prefix),
      split_at_spaces_(parts.split_at_spaces),
      splits_before_spaces_(splits_before_spaces(parts.llama.pieces)) {
  ascii_ids_.fill(PieceIds::kNoId);
  for (std::size_t id = 0; id < parts.llama.pieces.size(); ++id) {
    const auto& [text, kind] = parts.llama.pieces[id];
    const std::size_t length = utf8_character_length(text);
    if (length == 0 || length != text.size() || kind == LlamaPiece::Kind::literal) continue;
    if (length == 1) ascii_ids_[static_cast<std::size_t>(text[0])] = static_cast<std::int32_t>(id);
    character_ids_.emplace(key_of(text), static_cast<std::int32_t>(id));
  }
}

AddedTokenSearch ByteFallbackBpe::names_of(const ByteFallbackParts& parts) {
  auto tokens = parts.added_tokens;
  // With Prepend such a name is matched with a space sign before it: refused where it is met.
  if (parts.prefix == SpacePrefix::prepend) {
    for (AddedToken& token : tokens) token.single_word = token.single_word || (token.special && token.normalized);
  }
  return {tokens, parts.llama.where, SpecialNames::tokens};
}

void ByteFallbackBpe::append_part(std::string_view text, bool begins, std::vector<std::int32_t>& ids) const {
  append_plain(text, dummy_prefix() && wants_prefix(text, begins), ids);
}

bool ByteFallbackBpe::wants_prefix(std::string_view text, bool begins) const {
  if (text.empty() || utf8_character_length(text) == 0) return false;
  if (prefix_ == SpacePrefix::none) return false;
  if (prefix_ == SpacePrefix::prepend) return true;
  if (prefix_ == SpacePrefix::metaspace_first && !begins) return false;
  return !text.starts_with(' ') && !text.starts_with(kSpaceSign);
}

void ByteFallbackBpe::append(std::string_view text, bool dummy_prefix, std::vector<std::int32_t>& ids) const {
  if (added_tokens_.empty()) return append_plain(text, dummy_prefix && wants_prefix(text, true), ids);
  bool begins = true;
  for (const TextSegment& segment : added_tokens_.split(text)) {
    if (segment.id == TextSegment::kPlain) {
      append_plain(segment.text, (dummy_prefix || !begins) && wants_prefix(segment.text, begins), ids);
    } else {
      ids.push_back(segment.id);
    }
    begins = false;
  }
}

void ByteFallbackBpe::append_character(std::string_view character, std::vector<std::int32_t>& word) const {
  std::int32_t id = PieceIds::kNoId;
  if (character.size() == 1) {
    id = ascii_ids_[static_cast<std::size_t>(character[0])];
  } else if (const auto found = character_ids_.find(key_of(character)); found != character_ids_.end()) {
    id = found->second;
  }
  if (id != PieceIds::kNoId) {
    word.push_back(id);
    return;
  }
  for (const char byte : character) word.push_back(byte_ids()[static_cast<std::uint8_t>(byte)]);
}

void ByteFallbackBpe::append_plain(std::string_view text, bool with_prefix, std::vector<std::int32_t>& ids) const {
  std::vector<std::int32_t> word;
  const auto end_word = [&] {
    merges_.apply(word, ids);
    word.clear();
  };
  bool after_space = false;
  if (with_prefix) {
    append_character(kSpaceSign, word);
    after_space = true;
  }
  while (!text.empty()) {
    const std::size_t length = utf8_character_length(text);
    if (length == 0) {  // no character at all: a byte that nothing merges with
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
