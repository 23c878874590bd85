#pragma once
// Where the tensors of a block of Llama's kind stand among the block's parameters, found by their names.
#include "lib/models/layers/linear_group.hpp"

namespace fsdp::detail {

/// Of the matrices the family has either q, k, v or qkv, and either gate, up or gate_up; the others stay as they are
/// made. -1: there is no such norm.
struct BlockPlaces {
  Linear q, k, v, qkv, o, gate, up, gate_up, down;
  int input_norm = -1, post_attention_norm = -1;  ///< around attention
  int pre_ffn_norm = -1, post_ffn_norm = -1;      ///< around the feed-forward
  int q_norm = -1, k_norm = -1;

  /// \pre the decoder's parameters are set
  BlockPlaces(const Decoder& decoder, int block);

  std::vector<Linear> qkv_group(const DecoderTraits& traits) const;
  std::vector<Linear> gate_up_group(const DecoderTraits& traits) const;
};

}  // namespace fsdp::detail
