#pragma once
// The parts of SentencePiece's tokenizer.model that its library does not tell, read to check the file before the
// library sees it. Source: google/sentencepiece, src/sentencepiece_model.proto.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/text/tokenizer/sentencepiece_normalizer.hpp"

namespace fsdp {

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
