#pragma once
// Tokens added to a vocabulary by name: marks of a text's beginning and end, of roles, of infilling.
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

/// As tokenizer.json and tokenizer_config.json write them.
struct AddedToken {
  std::int32_t id = 0;
  std::string text;
  bool special = true;  ///< its name inside a text is plain text; a token that is not special is found in texts
  bool normalized = false;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
};

/// A part of a text: plain, or one added token.
struct TextSegment {
  static constexpr std::int32_t kPlain = -1;
  std::string_view text;
  std::int32_t id = kPlain;
};

/// A part of a text, in bytes.
struct TextRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// What the name of a special token means inside a text.
enum class SpecialNames : std::uint8_t { plain, tokens };

/// Finds added tokens, those that are special only where that is asked for: first those that are matched in the raw
/// text, then the others between them; the leftmost, of several that begin together the longest.
class AddedTokenSearch {
 public:
  AddedTokenSearch() = default;
  /// \param where  the file, for errors
  /// \throws FormatError for tokens that are not special and take white space with them or only match whole words
  AddedTokenSearch(const std::vector<AddedToken>& tokens, const std::string& where,
                   SpecialNames special = SpecialNames::plain);

  bool empty() const { return raw_.empty && normalized_.empty; }
  /// The parts of `text` in order, none of them empty.
  /// \param plain  where in `text` the names of special tokens are plain text, in order
  /// \throws FormatError when a special token that takes white space with it or only matches whole words is met
  std::vector<TextSegment> split(std::string_view text, std::span<const TextRange> plain = {}) const;
  /// The id of a token that is looked for.
  std::optional<std::int32_t> find(std::string_view name) const;

 private:
  struct Names {
    struct Name {
      std::string text;
      std::int32_t id;
      bool special;
      bool supported;  ///< matched as it is, without regard to what is around it
    };
    bool empty = true;
    std::array<std::vector<Name>, 256> by_first_byte;  ///< the longest first

    void add(const AddedToken& token);
    const Name* match(std::string_view text, std::size_t at, std::span<const TextRange> plain) const;
    /// Appends the parts of a part of the whole text.
    void split(std::string_view whole, TextRange part, std::span<const TextRange> plain,
               std::vector<TextSegment>& segments) const;
  };
  std::string where_;
  Names raw_;
  Names normalized_;
};

}  // namespace fsdp
