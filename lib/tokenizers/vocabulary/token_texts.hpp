#pragma once
// Texts of the ids of a vocabulary, and GPT-2's alphabet, in which some vocabularies spell them.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// GPT-2's alphabet writes each of the 256 bytes as one printable character, so that vocabularies are plain text.
// Source: openai/gpt-2, src/encoder.py, bytes_to_unicode.

/// Returns the bytes in the order of the alphabet, which is the order of their ids in GPT-2's vocabulary: first the
/// bytes that are printable in Latin-1 and stand for themselves, then the others, which stand for U+0100, U+0101, ...
std::array<std::uint8_t, 256> byte_alphabet();

/// Returns the character of the alphabet for each byte, in UTF-8.
std::array<std::string, 256> spelled_bytes();

/// Returns the bytes that a piece of a vocabulary stands for ("Ġthe" is " the"). A piece with a character outside the
/// alphabet, such as an added special token, stands for its own UTF-8 bytes.
std::string bytes_of_piece(std::string_view piece);

/// True when all characters of a piece are in the alphabet. No text becomes any other piece.
bool is_spelled(std::string_view piece);

/// Texts by id.
class TokenTexts {
 public:
  explicit TokenTexts(std::vector<std::string> texts) : texts_(std::move(texts)), required_(size()) {}
  std::int64_t size() const { return std::ssize(texts_); }
  /// Number of ids without optional ones at the end.
  std::int64_t required() const { return required_; }

  /// \throws RequestError naming an id that is not in [0, size())
  const std::string& of(std::int32_t id) const;

  /// Sets the text of `id`. An id beyond the vocabulary extends it; ids in between have empty texts.
  void set(std::int32_t id, std::string text, bool is_optional = false);

 private:
  std::vector<std::string> texts_;
  std::int64_t required_;
};

/// Finds ids by the bytes of their pieces.
class PieceIds {
 public:
  /// The first of several equal pieces gets the id; empty pieces are skipped.
  explicit PieceIds(const std::vector<std::string>& pieces);

  /// Returns the id, or kNoId.
  std::int32_t find(std::string_view piece) const;
  static constexpr std::int32_t kNoId = -1;

 private:
  std::string_view piece_of(std::int32_t id) const;
  /// Returns the slot of a piece, or the free one where the piece would be.
  std::size_t slot_of(std::string_view piece) const;

  std::string bytes_;  ///< of all pieces, in the order of ids: an allocation per piece would take most of the time
  std::vector<std::size_t> ends_;    ///< of the pieces in bytes_
  std::vector<std::int32_t> slots_;  ///< ids or kNoId; a power of two of them, at most half used
};

}  // namespace fsdp
