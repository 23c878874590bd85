#pragma once
// Byte-pair encoding over characters with a list of merges: Llama's vocabulary as in Hugging Face's tokenizer.json.
#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lib/tokenizers/bpe/bpe_merges.hpp"
#include "lib/tokenizers/bpe/metaspace_tokenizer.hpp"
#include "lib/tokenizers/vocabulary/added_tokens.hpp"

namespace fsdp {

/// How spaces are put before texts, named as in tokenizer.json.
enum class SpacePrefix : std::uint8_t {
  none,
  prepend,          ///< normalizer Prepend: before every text
  metaspace_first,  ///< at the beginning, unless the text begins with a space
  metaspace_always  ///< also after every added token
};

struct ByteFallbackParts {
  LlamaParts llama;  ///< `dummy_prefix`: decoding removes a space
  BpeMerges merges;
  SpacePrefix prefix = SpacePrefix::none;
  bool normalizes_spaces = false;  ///< the normalizer replaces spaces, also in names of normalized tokens
  bool split_at_spaces = false;    ///< nothing merges across the beginning of a space sign
  std::vector<AddedToken> added_tokens;
};

/// Characters without a piece become the pieces of their bytes.
class ByteFallbackBpe final : public MetaspaceTokenizer {
 public:
  explicit ByteFallbackBpe(ByteFallbackParts parts);

 protected:
  void append(std::string_view text, bool dummy_prefix, StopWatch& watch,
              std::vector<std::int32_t>& ids) const override;
  void append_aligned(std::string_view part, std::size_t begin, std::span<const TextRange> plain,
                      AlignedIds& out) const override;

 private:
  /// A part of a text between tokens that are matched in raw text.
  struct Part {
    std::string_view text;
    std::size_t begin;  ///< place of the part in the whole text
    bool may_prefix;    ///< a space may be put before it
  };
  bool wants_prefix(std::string_view text, bool begins) const;
  /// Normalizes a text. \param prefixed  applies the Prepend step
  NormalizedText normalize(std::string_view text, bool prefixed) const;
  void append_normalized(const Part& part, const TokenNames& names, std::span<const TextRange> plain,
                         AlignedIds& out) const;
  void append_plain(std::string_view text, bool with_prefix, StopWatch& watch, std::vector<std::int32_t>& ids) const;
  /// Appends the id of one character, or those of its bytes, to a word.
  void append_character(std::string_view character, std::vector<std::int32_t>& word) const;

  BpeMerges merges_;
  AddedTokenSearch added_tokens_;
  SpacePrefix prefix_;
  bool normalizes_spaces_;
  bool split_at_spaces_;
  bool splits_before_spaces_;
  std::array<std::int32_t, 128> ascii_ids_;  ///< ids of ASCII characters, or PieceIds::kNoId
  std::unordered_map<std::uint32_t, std::int32_t> character_ids_;
};

}  // namespace fsdp
