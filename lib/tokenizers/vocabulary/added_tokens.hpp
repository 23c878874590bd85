#pragma once
// Tokens that are added to a vocabulary by name: marks of the beginning and end of a text, of roles, of infilling.
//
// Source: src/tokenizer/added_vocabulary.rs of Hugging Face's tokenizers 0.23.
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

/// An added token with the flags of tokenizer.json and tokenizer_config.json.
struct AddedToken {
  static constexpr std::int32_t kNoId = -1;  ///< no id is stated
  std::int32_t id = 0;
  std::string text;
  bool special = true;       ///< the name inside a text is plain text; names of other tokens are found in texts
  bool normalized = false;   ///< the normalized name is searched in the normalized text
  bool single_word = false;  ///< found only where no letter or digit is beside it
  bool lstrip = false;       ///< includes the white space before it
  bool rstrip = false;       ///< includes the white space after it
  bool is_optional = false;  ///< named without an id beside the vocabulary; a model need not have a row for it
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

/// True when [begin, end) and some range share a byte.
bool overlaps(std::span<const TextRange> ranges, std::size_t begin, std::size_t end);

/// Treatment of the name of a special token inside a text.
enum class SpecialNames : std::uint8_t { plain, tokens };

/// True where the name of a special token is plain text even under SpecialNames::tokens; empty: nowhere.
using PlainTest = std::function<bool(TextRange)>;

/// Finds names in a text: the leftmost, and of several at one place the longest. A match that turns out to be no token
/// (not a single word, or a special name that is plain text here) is skipped as a whole. A step of the search is one
/// byte of a name, however many names there are.
class TokenNames {
 public:
  /// Adds a name.
  /// \param name      spelled as in texts, not empty; of equal names the first counts
  /// \param is_plain  the name is never taken for the token
  void add(const std::string& name, const AddedToken& token, bool is_plain = false);
  /// True when no name is ever taken for a token.
  bool empty() const { return empty_; }
  std::optional<std::int32_t> find(std::string_view name) const;
  /// Splits `text` into its parts in order, none empty. Parts overlap only where a token begins in white space that the
  /// previous token has taken.
  std::vector<TextSegment> split(std::string_view text, const PlainTest& is_plain = {}) const;

 private:
  struct Name {
    AddedToken token;
    bool is_plain;
  };
  /// A node in a tree of the names' bytes.
  struct Node {
    std::int32_t name = kNone;                                ///< name that ends at this node
    std::vector<std::pair<std::uint8_t, std::int32_t>> next;  ///< children by byte
  };
  struct Match {
    const Name* name;
    std::size_t length;
  };
  static constexpr std::int32_t kNone = -1;

  std::int32_t child(std::int32_t node, char byte) const;
  /// Returns the longest name at the beginning of `text`.
  std::optional<Match> match(std::string_view text) const;

  bool empty_ = true;
  std::vector<Name> names_;
  std::vector<Node> nodes_ = std::vector<Node>(1);  ///< the first is the root
  std::array<std::int32_t, 256> by_first_byte_ = no_nodes();

  static constexpr std::array<std::int32_t, 256> no_nodes() {
    std::array<std::int32_t, 256> none{};
    none.fill(kNone);
    return none;
  }
};

/// Search for the added tokens of a vocabulary, optionally with special ones. Tokens that are matched in raw text come
/// first; the text between them is normalized, and the other tokens are matched there.
class AddedTokenSearch {
 public:
  using Normalize = std::function<std::string(const std::string&)>;

  AddedTokenSearch() = default;
  /// \param normalize  normalization of the vocabulary; empty: none
  explicit AddedTokenSearch(const std::vector<AddedToken>& tokens, SpecialNames special = SpecialNames::plain,
                            const Normalize& normalize = {});

  const TokenNames& raw() const { return raw_; }
  const TokenNames& normalized() const { return normalized_; }
  bool empty() const { return raw_.empty() && normalized_.empty(); }
  /// Returns the id of a token that is searched for.
  std::optional<std::int32_t> find(std::string_view name) const;

 private:
  TokenNames raw_;
  TokenNames normalized_;
  std::vector<std::pair<std::string, std::int32_t>> normalized_ids_;  ///< ids by names before normalization
};

}  // namespace fsdp
