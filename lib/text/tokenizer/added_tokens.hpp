#pragma once
// Tokens added to a vocabulary by name: marks of a text's beginning and end, of roles, of infilling.
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

/// As tokenizer.json and tokenizer_config.json write them.
struct AddedToken {
  static constexpr std::int32_t kNoId = -1;  ///< none is written
  std::int32_t id = 0;
  std::string text;
  bool special = true;       ///< its name inside a text is plain text; a token that is not special is found in texts
  bool normalized = false;   ///< its normalized name is looked for in the normalized text
  bool single_word = false;  ///< only where no letter or digit is beside it
  bool lstrip = false;       ///< takes the white space before it with it
  bool rstrip = false;       ///< ... and behind it
  bool is_optional = false;  ///< named without an id beside the vocabulary: a model need not have a row for it
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

/// True when [begin, end) and some range have bytes in common.
bool overlaps(std::span<const TextRange> ranges, std::size_t begin, std::size_t end);

/// The meaning of a special token's name inside a text.
enum class SpecialNames : std::uint8_t { plain, tokens };

/// Says where the names of special tokens are plain text all the same; empty: nowhere.
using PlainTest = std::function<bool(TextRange)>;

/// Finds names: the leftmost, of several that begin together the longest. What is not taken for a token after all,
/// since it is no single word or a special name that is plain text here, is passed over as a whole. A step of the
/// search is one byte of a name, however many names there are.
class TokenNames {
 public:
  /// \param name      as it stands in texts, not empty; of equal ones the first counts
  /// \param is_plain  it is never taken for the token
  void add(const std::string& name, const AddedToken& token, bool is_plain = false);
  /// True when no name is ever taken for a token.
  bool empty() const { return empty_; }
  std::optional<std::int32_t> find(std::string_view name) const;
  /// The parts of `text` in order, none empty; they overlap only where a token begins in white space that the one
  /// before it has taken.
  std::vector<TextSegment> split(std::string_view text, const PlainTest& is_plain = {}) const;

 private:
  struct Name {
    AddedToken token;
    bool is_plain;
  };
  /// A node in a tree of the names' bytes.
  struct Node {
    std::int32_t name = kNone;                                ///< that ends here
    std::vector<std::pair<std::uint8_t, std::int32_t>> next;  ///< by byte
  };
  struct Match {
    const Name* name;
    std::size_t length;
  };
  static constexpr std::int32_t kNone = -1;

  std::int32_t child(std::int32_t node, char byte) const;
  /// The longest name that `text` begins with.
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

/// The added tokens of a vocabulary, those that are special only where that is asked for. First come those that are
/// matched in the raw text; what is between them is normalized, and the others are matched there.
class AddedTokenSearch {
 public:
  using Normalize = std::function<std::string(const std::string&)>;

  AddedTokenSearch() = default;
  /// \param normalize  what the vocabulary makes of a text; empty: nothing
  explicit AddedTokenSearch(const std::vector<AddedToken>& tokens, SpecialNames special = SpecialNames::plain,
                            const Normalize& normalize = {});

  const TokenNames& raw() const { return raw_; }
  const TokenNames& normalized() const { return normalized_; }
  bool empty() const { return raw_.empty() && normalized_.empty(); }
  /// The id of a token that is looked for.
  std::optional<std::int32_t> find(std::string_view name) const;

 private:
  TokenNames raw_;
  TokenNames normalized_;
  std::vector<std::pair<std::string, std::int32_t>> normalized_ids_;  ///< by their own names
};

}  // namespace fsdp
