#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/tokenizers/unicode/code_points.hpp"

namespace fsdp {

/// The kinds of characters that some sets tell apart: two characters beyond ASCII are of one kind if every set has both
/// or neither. Texts are spelled with a sign for each character, that of its kind, so that a regular expression needs
/// no tables of Unicode. ASCII's characters are their own signs. Immutable.
class CharacterKinds {
 public:
  /// \throws FormatError when there are more than 50,000 kinds
  explicit CharacterKinds(const std::vector<CodePoints>& sets);

  /// True when a sign may be beyond one byte; then all beyond ASCII are spelled in UTF-8.
  bool is_wide() const { return members_.size() > 0x100; }
  /// The class that matches one sign of the characters of a set, in PCRE2's syntax.
  std::string class_of(std::size_t set) const;
  /// \param text  valid UTF-8
  std::string spelled(std::string_view text) const;

 private:
  std::uint16_t kind_of(char32_t code) const { return kinds_[blocks_[code >> 8] + (code & 0xff)]; }

  std::vector<std::vector<bool>> members_;    ///< by kind and set
  std::array<std::uint32_t, 0x1100> blocks_;  ///< where the kinds of 256 code points begin in kinds_
  std::vector<std::uint16_t> kinds_;
};

}  // namespace fsdp
