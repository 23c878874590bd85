#pragma once
// Tokens added to a vocabulary by name: marks of a text's beginning and end, of roles, of infilling.
#include <array>
#include <cstddef>
#include <cstdint>
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

/// Finds the added tokens that are not special: first those that are matched in the raw text, then the others between
/// them; the leftmost, of several that begin together the longest.
class AddedTokenSearch {
 public:
  AddedTokenSearch() = default;
  /// \param where  the file, for errors
  /// \throws FormatError for tokens that take white space with them or only match whole words
  AddedTokenSearch(const std::vector<AddedToken>& tokens, const std::string& where);

  bool empty() const { return raw_.empty && normalized_.empty; }
  /// The parts of `text` in order, none of them empty.
  std::vector<TextSegment> split(std::string_view text) const;

 private:
  struct Names {
    struct Name {
      std::string text;
      std::int32_t id;
    };
    bool empty = true;
    std::array<std::vector<Name>, 256> by_first_byte;  ///< the longest first

    void add(const AddedToken& token);
    const Name* match(std::string_view text) const;
    void split(std::string_view text, std::vector<TextSegment>& segments) const;
  };
  Names raw_;
  Names normalized_;
};

}  // namespace fsdp
