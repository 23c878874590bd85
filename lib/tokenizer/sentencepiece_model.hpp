#pragma once
// The parts of SentencePiece's tokenizer.model that its library does not tell, read to check the file before the
// library sees it. Source: google/sentencepiece, src/sentencepiece_model.proto.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

struct SentencePieceModel {
  enum class Type : std::uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct Piece {
    std::string text;
    Type type = Type::normal;
  };
  std::vector<Piece> pieces;  ///< by id
  std::string unknown_text = " \xE2\x81\x87 ";
  bool dummy_prefix = true;
  /// The model without what is not needed to encode, for the library: training tests and the like are left out.
  std::string serialized;
};

/// \param file   names the model in errors
/// \throws FormatError naming the byte where the file breaks, or the setting that is not Llama's: byte-pair encoding
///         with byte fallback that changes nothing in a text but its spaces to U+2581
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& file);

}  // namespace fsdp
