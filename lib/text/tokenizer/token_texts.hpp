#pragma once
// The texts of the ids of a vocabulary.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fsdp {

// GPT-2's alphabet: each of the 256 bytes is written as one printable character, so that vocabularies are plain text.
// Source: openai/gpt-2, src/encoder.py, bytes_to_unicode.

/// The bytes in the order of the alphabet, which is the order of their ids in GPT-2's vocabulary: first those that
/// are printable in Latin-1 and stand for themselves, then the others, which stand for U+0100, U+0101, ...
std::array<std::uint8_t, 256> byte_alphabet();

/// The bytes that a piece of a vocabulary stands for ("Ġthe" is " the"). A piece with a character outside the alphabet
/// (a special token someone added) stands for its own UTF-8 bytes.
std::string bytes_of_piece(std::string_view piece);

/// Texts by id.
class TokenTexts {
 public:
  explicit TokenTexts(std::vector<std::string> texts) : texts_(std::move(texts)), required_(size()) {}
  std::int64_t size() const { return static_cast<std::int64_t>(texts_.size()); }
  /// Without the optional ones at the end.
  std::int64_t required() const { return required_; }

  /// \throws UsageError naming an id that is not in [0, size())
  const std::string& of(std::int32_t id) const;

  /// Makes `id` stand for `text`, growing the vocabulary when it is beyond: ids between stand for nothing.
  void set(std::int32_t id, std::string text, bool is_optional = false);

 private:
  std::vector<std::string> texts_;
  std::int64_t required_;
};

/// Finds pieces by the bytes they stand for.
class PieceIds {
 public:
  /// The first of several equal pieces has the id; empty pieces have none.
  explicit PieceIds(const std::vector<std::string>& pieces);

  /// The id or kNoId.
  std::int32_t find(std::string_view piece) const;
  static constexpr std::int32_t kNoId = -1;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> ids_;
};

}  // namespace fsdp
