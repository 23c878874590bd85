#include "lib/tokenizers/sentencepiece/sentencepiece_merges.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "lib/base/text/utf8.hpp"
#include "lib/base/types/index.hpp"

namespace fsdp {
namespace {

using Type = SentencePieceModel::Type;

constexpr std::int32_t kNone = -1;

/// True where the library would do something that the merges do not.
bool is_unusual(const SentencePieceModel& model) {
  constexpr std::size_t kLongest = 1000;  // bytes; each place of a piece is tried as a cut
  std::set<std::string_view> texts;
  for (const auto& piece : model.pieces) {
    if (piece.type == Type::unused || !std::isfinite(piece.score) || piece.text.size() > kLongest) return true;
    const bool is_text = piece.type == Type::normal || piece.type == Type::user_defined;
    if (is_text && !texts.insert(piece.text).second) return true;
  }
  // The library asks for the marks first, when it gives a symbol its id.
  return !model.byte_fallback || std::ranges::any_of(model.pieces, [&](const auto& piece) {
    const bool is_mark = piece.type == Type::control || piece.type == Type::unknown || piece.type == Type::byte;
    return is_mark && (texts.contains(piece.text) || utf8_character_length(piece.text) == piece.text.size());
  });
}

}  // namespace

std::optional<SentencePieceMerges> SentencePieceMerges::of(const SentencePieceModel& model,
                                                           const std::vector<std::int32_t>& byte_ids) {
  if (is_unusual(model)) return std::nullopt;
  SentencePieceMerges merges;
  merges.pieces_ = model.pieces;
  merges.num_pieces_ = static_cast<std::int32_t>(model.pieces.size());
  merges.bytes_ = byte_ids;
  for (std::size_t id = 0; id < merges.pieces_.size(); ++id) {
    const auto& piece = merges.pieces_[id];
    const auto number = static_cast<std::int32_t>(id);
    if (piece.type == Type::user_defined) {
      merges.users_.emplace(piece.text, number);
      auto& lengths = merges.user_lengths_[static_cast<std::uint8_t>(piece.text[0])];
      if (std::ranges::find(lengths, piece.text.size()) == lengths.end()) lengths.push_back(piece.text.size());
    }
    if (piece.type == Type::normal && utf8_character_length(piece.text) == piece.text.size())
      merges.symbols_.emplace(piece.text, number);
  }
  for (auto& lengths : merges.user_lengths_) std::ranges::sort(lengths, std::greater());
  merges.add_merges();
  for (std::size_t c = 0; c < merges.ascii_.size(); ++c) {
    const char character = static_cast<char>(c);
    const auto found = merges.symbols_.find(std::string_view(&character, 1));
    merges.ascii_[c] = found == merges.symbols_.end() ? kNone : found->second;
  }
  return merges;
}

/// The symbol of a character of a piece; a new one where it has no piece.
std::int32_t SentencePieceMerges::symbol_of(std::string_view character) {
  const auto next = num_pieces_ + static_cast<std::int32_t>(no_pieces_.size());
  const auto [found, is_new] = symbols_.try_emplace(character, next);
  if (is_new) no_pieces_.push_back(character);
  return found->second;
}

/// Adds every way to make a piece of two symbols. Pairs whose sums have one score have one priority.
void SentencePieceMerges::add_merges() {
  std::unordered_map<std::string_view, std::int32_t> ids;  // of what merges make
  std::multimap<float, std::int32_t, std::greater<>> by_score;
  for (std::size_t id = 0; id < pieces_.size(); ++id) {
    if (pieces_[id].type != Type::normal || symbols_.contains(pieces_[id].text)) continue;
    ids.emplace(pieces_[id].text, static_cast<std::int32_t>(id));
    by_score.emplace(pieces_[id].score, static_cast<std::int32_t>(id));
  }
  const auto find = [&](std::string_view text) {
    if (utf8_character_length(text) == text.size()) return symbol_of(text);
    const auto found = ids.find(text);
    return found == ids.end() ? kNone : found->second;
  };
  merges_.reserve(4 * ids.size());
  float last = std::nanf("");
  for (const auto& [score, id] : by_score) {
    const std::string_view text = element(pieces_, id).text;
    for (auto at = utf8_character_length(text); at < text.size(); at += utf8_character_length(text.substr(at))) {
      const auto left = find(text.substr(0, at)), right = find(text.substr(at));
      if (left == kNone || right == kNone) continue;
      merges_.add(left, right, id, score == last ? BpeMerges::Priority::same : BpeMerges::Priority::lower);
      last = score;
    }
  }
}

std::int32_t SentencePieceMerges::user_piece(std::string_view text, std::size_t& bytes) const {
  for (const auto length : user_lengths_[static_cast<std::uint8_t>(text[0])]) {
    if (length > text.size()) continue;
    const auto found = users_.find(text.substr(0, length));
    if (found == users_.end()) continue;
    bytes = length;
    return found->second;
  }
  return kNone;
}

void SentencePieceMerges::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  std::vector<std::int32_t> word, merged;
  const auto end_word = [&] {
    merged.clear();
    merges_.apply(word, merged);
    word.clear();
    for (const auto id : merged) {
      if (id < num_pieces_) {
        ids.push_back(id);
        continue;
      }
      for (const char byte : element(no_pieces_, id - num_pieces_))
        ids.push_back(bytes_[static_cast<std::uint8_t>(byte)]);
    }
  };
  while (!text.empty()) {
    std::size_t length = 0;
    if (const auto user = user_piece(text, length); user != kNone) {
      end_word();
      ids.push_back(user);
      text.remove_prefix(length);
      continue;
    }
    length = utf8_character_length(text);
    std::int32_t symbol = kNone;
    if (length == 1) {
      symbol = element(ascii_, text.front());
    } else if (const auto found = symbols_.find(text.substr(0, length)); found != symbols_.end()) {
      symbol = found->second;
    }
    if (symbol != kNone) {
      word.push_back(symbol);
    } else {  // in no piece: nothing merges with it
      end_word();
      for (const char byte : text.substr(0, length)) ids.push_back(bytes_[static_cast<std::uint8_t>(byte)]);
    }
    text.remove_prefix(length);
  }
  end_word();
}

}  // namespace fsdp
