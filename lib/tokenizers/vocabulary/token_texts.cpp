#include "lib/tokenizers/vocabulary/token_texts.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <functional>
#include <optional>
#include <utility>

#include "lib/base/text/utf8.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"

namespace fsdp {
namespace {

constexpr std::size_t kNumPrintable = 188;
constexpr int kNoByte = -1;

bool is_printable_latin1(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/// \param character  one valid character
/// \return the byte of GPT-2's alphabet that `character` stands for, or kNoByte
int byte_of_character(std::string_view character, const std::array<std::uint8_t, 256>& alphabet) {
  if (character.size() > 2) return kNoByte;
  int code = static_cast<std::uint8_t>(character[0]);
  if (character.size() == 2) code = ((code & 0x1F) << 6) | (static_cast<std::uint8_t>(character[1]) & 0x3F);
  if (code < 256) return is_printable_latin1(code) ? code : kNoByte;
  const auto index = kNumPrintable + static_cast<std::size_t>(code - 256);
  return index < alphabet.size() ? alphabet[index] : kNoByte;
}

/// Returns nothing for a piece with a character outside the alphabet.
std::optional<std::string> bytes_spelled_by(std::string_view piece) {
  static const auto alphabet = byte_alphabet();
  std::string bytes;
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t length = utf8_character_length(piece.substr(at));
    const int byte = length == 0 ? kNoByte : byte_of_character(piece.substr(at, length), alphabet);
    if (byte == kNoByte) return {};
    bytes += static_cast<char>(byte);
    at += length;
  }
  return bytes;
}

}  // namespace

std::array<std::uint8_t, 256> byte_alphabet() {
  std::array<std::uint8_t, 256> alphabet{};
  std::size_t next = 0;
  for (const bool printable : {true, false}) {
    for (int byte = 0; byte < 256; ++byte) {
      if (is_printable_latin1(byte) == printable) alphabet[next++] = static_cast<std::uint8_t>(byte);
    }
  }
  return alphabet;
}

std::array<std::string, 256> spelled_bytes() {
  std::array<std::string, 256> spelled;
  const auto alphabet = byte_alphabet();
  for (std::size_t i = 0; i < alphabet.size(); ++i) {
    const auto code = i < kNumPrintable ? alphabet[i] : 256 + i - kNumPrintable;
    auto& character = spelled[alphabet[i]];
    if (code >= 0x80) character += static_cast<char>(0xC0 | (code >> 6));
    character += static_cast<char>(code < 0x80 ? code : 0x80 | (code & 0x3F));
  }
  return spelled;
}

std::string bytes_of_piece(std::string_view piece) { return bytes_spelled_by(piece).value_or(std::string(piece)); }

bool is_spelled(std::string_view piece) { return bytes_spelled_by(piece).has_value(); }

const std::string& TokenTexts::of(std::int32_t id) const {
  if (id < 0 || id >= size()) {
    throw RequestError("token id " + std::to_string(id) + " is not in the tokenizer's vocabulary of " +
                       std::to_string(size()) + ": was the model trained with another tokenizer?");
  }
  return element(texts_, id);
}

void TokenTexts::set(std::int32_t id, std::string text, bool is_optional) {
  const auto index = to_index(id);
  if (index >= texts_.size()) texts_.resize(index + 1);
  texts_[index] = std::move(text);
  if (!is_optional) required_ = std::max(required_, std::int64_t{id} + 1);
}

PieceIds::PieceIds(const std::vector<std::string>& pieces) : slots_(std::bit_ceil(2 * pieces.size() + 1), kNoId) {
  ends_.reserve(pieces.size());
  for (const std::string& piece : pieces) {
    bytes_ += piece;
    ends_.push_back(bytes_.size());
    if (piece.empty()) continue;
    std::int32_t& id = slots_[slot_of(piece)];
    if (id == kNoId) id = static_cast<std::int32_t>(ends_.size() - 1);
  }
}

std::string_view PieceIds::piece_of(std::int32_t id) const {
  const auto index = to_index(id);
  const std::size_t begin = index == 0 ? 0 : ends_[index - 1];
  return std::string_view(bytes_).substr(begin, ends_[index] - begin);
}

std::size_t PieceIds::slot_of(std::string_view piece) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = std::hash<std::string_view>()(piece) & mask;
  while (slots_[slot] != kNoId && piece_of(slots_[slot]) != piece) slot = (slot + 1) & mask;
  return slot;
}

std::int32_t PieceIds::find(std::string_view piece) const { return slots_[slot_of(piece)]; }

}  // namespace fsdp
