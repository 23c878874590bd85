#pragma once
// Byte-pair encoding as the SentencePiece library does it, without the look-up of a text for each pair of symbols that
// takes most of its time. Source: google/sentencepiece, src/bpe_model.cc, Model::SampleEncode without dropout.
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lib/tokenizers/bpe/bpe_merges.hpp"
#include "lib/tokenizers/sentencepiece/sentencepiece_model.hpp"

namespace fsdp {

class SentencePieceMerges {
 public:
  /// \param byte_ids  ids of the 256 bytes
  /// \return nothing for a model that has what this class does not do: unused pieces, characters without bytes, scores
  ///         that are no numbers
  static std::optional<SentencePieceMerges> of(const SentencePieceModel& model,
                                               const std::vector<std::int32_t>& byte_ids);
  SentencePieceMerges(SentencePieceMerges&&) = default;

  /// Appends the ids of a normalized text. \param text  valid UTF-8
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const;

 private:
  SentencePieceMerges() = default;
  std::int32_t symbol_of(std::string_view character);
  void add_merges();
  /// The longest user-defined piece at the beginning of a text; -1: none.
  std::int32_t user_piece(std::string_view text, std::size_t& bytes) const;

  BpeMerges merges_;
  std::int32_t num_pieces_ = 0;
  std::unordered_map<std::string_view, std::int32_t> symbols_;  ///< characters of pieces; ids above those of pieces
                                                                ///< have no piece of their own
  std::vector<std::string_view> no_pieces_;                     ///< by their ids, from num_pieces_ on
  std::array<std::int32_t, 128> ascii_{};                       ///< symbols of ASCII characters; -1: in no piece
  std::vector<std::int32_t> bytes_;                             ///< ids of bytes
  std::unordered_map<std::string_view, std::int32_t> users_;    ///< user-defined pieces
  std::array<std::vector<std::size_t>, 256> user_lengths_;      ///< of these by first byte, the longest first
  std::vector<SentencePieceModel::Piece> pieces_;               ///< whose texts the views are of
};

}  // namespace fsdp
