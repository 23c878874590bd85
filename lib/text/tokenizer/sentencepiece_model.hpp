#pragma once
// The parts of SentencePiece's tokenizer.model that its library does not tell, read to check the file before the
// library sees it. Source: google/sentencepiece, src/sentencepiece_model.proto.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/text/tokenizer/metaspace_tokenizer.hpp"

namespace fsdp {

// The normalization of a text by a SentencePiece model, before the model looks for pieces.
//
// Source: google/sentencepiece, src/normalizer.cc, and the double-array trie of s-yata/darts-clone, include/darts.h.

/// normalizer_spec of a model.
struct NormalizerSpec {
  std::string character_map;  ///< precompiled_charsmap; empty: characters stay what they are
  bool dummy_prefix = true;
  bool remove_extra_spaces = true;
  bool escape_spaces = true;  ///< spaces become U+2581
};

/// A map of character sequences to others: u32 bytes of the trie, the trie's units, then the results, each with a zero
/// behind it. All numbers are little endian.
class CharacterMap {
 public:
  /// \param file  names the model in errors
  /// \throws FormatError when sizes are wrong or the trie leads outside of itself or the results
  CharacterMap(std::string_view bytes, const std::string& file);

  struct Rule {
    std::size_t length = 0;  ///< bytes of the text that it replaces; 0: no rule applies
    std::string_view result;
  };
  /// The rule for the longest beginning of `text`.
  Rule find(std::string_view text) const;

 private:
  void check(const std::string& file) const;

  std::vector<std::uint32_t> units_;
  std::string results_;
};

class SentencePieceNormalizer {
 public:
  /// \param symbols  pieces that the user defined, which stay as they are
  /// \throws FormatError
  SentencePieceNormalizer(const NormalizerSpec& spec, const std::vector<std::string>& symbols, const std::string& file);

  /// Bytes that are no UTF-8 stay; SentencePiece would put U+FFFD in their place.
  /// \param dummy_prefix  false: no space is put before the text even where the model wants it
  NormalizedText normalize(std::string_view text, bool dummy_prefix) const;
  /// Its text alone, for a third of the memory.
  std::string normalized_text(std::string_view text, bool dummy_prefix) const;

 private:
  /// One step at the beginning of a text: the length of the bytes it consumes, and their replacement.
  struct Step {
    std::size_t length;
    std::string_view result;
  };
  Step step(std::string_view text) const;
  std::size_t skip_spaces(std::string_view text) const;
  void trim_end(std::string& text) const;
  /// Calls add(bytes, origin) for what the text becomes.
  template <typename Add>
  void for_parts(std::string_view text, bool dummy_prefix, const Add& add) const;

  std::vector<CharacterMap> map_;                      ///< one or none
  std::array<std::vector<std::string>, 256> symbols_;  ///< by first byte, the longest first
  bool dummy_prefix_, removes_, escapes_;
};

struct SentencePieceModel {
  enum class Type : std::uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct Piece {
    std::string text;
    Type type = Type::normal;
  };
  std::vector<Piece> pieces;  ///< by id
  std::string unknown_text = " \xE2\x81\x87 ";
  std::string bos_text = "<s>";  ///< the names of the marks
  std::string eos_text = "</s>";
  NormalizerSpec normalizer;
  /// The model without what is not needed to encode, for the library: self tests and the like are left out, and so is
  /// the normalizer. It takes normalized texts.
  std::string serialized;
};

/// \param file   names the model in errors
/// \throws FormatError naming the byte where the file breaks, or the setting that is not supported: expected are
///         byte-pair encoding, spaces before words, nothing replaced in what is decoded
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& file);

}  // namespace fsdp
