#pragma once
// Parses SentencePiece's tokenizer.model: checks it before the library reads it, and extracts the parts that the
// library does not expose. Source: google/sentencepiece, src/sentencepiece_model.proto.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/tokenizers/bpe/metaspace_tokenizer.hpp"

namespace fsdp {

// The normalization of a text by a SentencePiece model, before the model looks for pieces.
//
// Source: google/sentencepiece, src/normalizer.cc, and the double-array trie of s-yata/darts-clone, include/darts.h.

/// The normalizer_spec of a model.
struct NormalizerSpec {
  std::string character_map;  ///< precompiled_charsmap; empty: characters stay unchanged
  bool dummy_prefix = true;
  bool remove_extra_spaces = true;
  bool escape_spaces = true;  ///< spaces become U+2581
};

/// Maps character sequences to others. The format is: u32 bytes of the trie, the units of the trie, then the results,
/// each followed by a zero, all little endian.
class CharacterMap {
 public:
  /// \param file  names the model in errors
  /// \throws FormatError when sizes are wrong or the trie leads outside of itself or the results
  CharacterMap(std::string_view bytes, const std::string& file);

  struct Rule {
    std::size_t length = 0;  ///< bytes of the text that the rule replaces; 0: no rule applies
    std::string_view result;
  };
  /// Returns the rule for the longest beginning of `text` that has one.
  Rule find(std::string_view text) const;

 private:
  void check(const std::string& file) const;

  std::vector<std::uint32_t> units_;
  std::string results_;
};

class SentencePieceNormalizer {
 public:
  /// \param symbols  user-defined pieces, which are never changed
  /// \throws FormatError
  SentencePieceNormalizer(const NormalizerSpec& spec, const std::vector<std::string>& symbols, const std::string& file);

  /// Normalizes a text. Bytes that are not UTF-8 stay; SentencePiece would replace them by U+FFFD.
  /// \param dummy_prefix  false: no space is put before the text, even if the model wants it
  NormalizedText normalize(std::string_view text, bool dummy_prefix) const;
  /// Returns only the text of normalize(), in a third of the memory.
  std::string normalized_text(std::string_view text, bool dummy_prefix) const;

 private:
  /// A step of the normalization: number of bytes that it consumes, and their replacement.
  struct Step {
    std::size_t length;
    std::string_view result;
  };
  Step step(std::string_view text) const;
  std::size_t skip_spaces(std::string_view text) const;
  void trim_end(std::string& text) const;
  /// Calls add(bytes, origin) for each part of the normalized text.
  template <typename Add>
  void for_parts(std::string_view text, bool dummy_prefix, const Add& add) const;

  std::vector<CharacterMap> map_;                      ///< at most one
  std::array<std::vector<std::string>, 256> symbols_;  ///< symbols by first byte, the longest first
  bool dummy_prefix_, removes_, escapes_;
  bool only_escapes_;  ///< nothing changes but spaces
};

struct SentencePieceModel {
  enum class Type : std::uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct Piece {
    std::string text;
    Type type = Type::normal;
    float score = 0;  ///< of two pairs of pieces, the one whose sum has the higher score is joined first
  };
  std::vector<Piece> pieces;  ///< by id
  std::string unknown_text = " \xE2\x81\x87 ";
  bool byte_fallback = false;    ///< characters without a piece become the pieces of their bytes
  std::string bos_text = "<s>";  ///< names of the marks
  std::string eos_text = "</s>";
  NormalizerSpec normalizer;
  /// The model for the library, reduced to the parts that encoding needs: without self tests and normalizer. Takes
  /// normalized texts.
  std::string serialized;
};

/// \param file   names the model in errors
/// \throws FormatError naming the byte where the file breaks, or the setting that is not supported: expected are
///         byte-pair encoding, spaces before words, nothing replaced in what is decoded
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& file);

}  // namespace fsdp
