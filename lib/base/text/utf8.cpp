#include "lib/base/text/utf8.hpp"

#include <algorithm>
#include <cstdint>

namespace fsdp {
namespace {

/// The bytes that may follow a first byte (Unicode standard, table 3-7).
struct Sequence {
  std::size_t length;  ///< of the whole character, 0 when no character begins so
  std::uint8_t second_low = 0x80;
  std::uint8_t second_high = 0xBF;
};

Sequence sequence_of(std::uint8_t first) {
  if (first < 0x80) return {1};
  if (first < 0xC2) return {0};
  if (first < 0xE0) return {2};
  if (first == 0xE0) return {3, 0xA0, 0xBF};
  if (first == 0xED) return {3, 0x80, 0x9F};
  if (first < 0xF0) return {3};
  if (first == 0xF0) return {4, 0x90, 0xBF};
  if (first < 0xF4) return {4};
  if (first == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

/// How many bytes at the start of `text` are a character or the beginning of one; 0 when they can be neither.
std::size_t well_formed_bytes(std::string_view text, const Sequence& sequence) {
  const std::size_t available = std::min(sequence.length, text.size());
  for (std::size_t i = 1; i < available; ++i) {
    const auto byte = static_cast<std::uint8_t>(text[i]);
    const bool allowed =
        i == 1 ? byte >= sequence.second_low && byte <= sequence.second_high : byte >= 0x80 && byte <= 0xBF;
    if (!allowed) return 0;
  }
  return available;
}

}  // namespace

std::size_t utf8_character_length(std::string_view text) {
  if (text.empty()) return 0;
  const Sequence sequence = sequence_of(static_cast<std::uint8_t>(text[0]));
  return well_formed_bytes(text, sequence) == sequence.length ? sequence.length : 0;
}

std::size_t utf8_valid_prefix(std::string_view text) {
  std::size_t end = 0;
  while (const std::size_t length = utf8_character_length(text.substr(end))) end += length;
  return end;
}

std::size_t utf8_printable_prefix(std::string_view text) {
  for (std::size_t tail = 1; tail <= std::min<std::size_t>(3, text.size()); ++tail) {
    const auto rest = text.substr(text.size() - tail);
    const Sequence sequence = sequence_of(static_cast<std::uint8_t>(rest[0]));
    if (sequence.length > tail && well_formed_bytes(rest, sequence) == tail) return text.size() - tail;
  }
  return text.size();
}

}  // namespace fsdp
