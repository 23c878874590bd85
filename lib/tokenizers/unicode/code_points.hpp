#pragma once
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace fsdp {

/// A set of code points. Immutable.
class CodePoints {
 public:
  struct Range {
    char32_t first, last;  ///< both belong to it
    bool operator==(const Range&) const = default;
  };

  CodePoints() = default;
  /// \param ranges  in any order; they may overlap
  explicit CodePoints(std::vector<Range> ranges);

  /// Characters with a property, in the Unicode version of unicode_tables.hpp.
  /// \param name  a general category of one or two letters ("L", "Lu") or a script ("Han"); as patterns spell it
  /// \return nothing for other names
  static std::optional<CodePoints> with_property(std::string_view name);
  /// Unicode's White_Space, to which U+180E has not belonged since Unicode 6.3.
  static CodePoints white_space();
  /// Letters, marks, decimal digits, connecting punctuation and joiners (\w of UTS #18, annex C).
  static CodePoints word_characters();
  /// Punctuation as the pre-tokenizer of that name has it: Unicode 8's, and the symbols of ASCII.
  static CodePoints punctuation();
  /// Numbers as the pre-tokenizer Digits has them: those of Unicode 17.
  static CodePoints numbers();
  /// Characters that Unicode 9 does not have.
  static CodePoints newer_than_unicode_9();

  /// Sorted; between two of them is at least one code point.
  std::span<const Range> ranges() const { return ranges_; }
  bool contains(char32_t code) const;
  CodePoints joined(const CodePoints& other) const;
  /// All code points that do not belong to this set.
  CodePoints inverted() const;
  bool operator==(const CodePoints&) const = default;

 private:
  std::vector<Range> ranges_;
};

}  // namespace fsdp
