#pragma once
// What tells decoders with rotary positions apart beyond their sizes. A family of models is a choice of these
// (family.hpp); layers ask for the traits, never for the family.
#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

/// Norm of queries and keys before they are rotated.
enum class HeadNorm {
  none,
  per_head,  ///< of each head by itself: one weight of head_width() elements for all
  all_heads  ///< of all heads of a token at once
};

/// The defaults are Llama's.
struct DecoderTraits {
  std::string family = "llama";    ///< config.json's model_type
  bool qkv_bias = false;           ///< on queries, keys and values, not on what follows them
  bool fused_projections = false;  ///< one matrix qkv_proj = [q; k; v] and one gate_up_proj = [gate; up]
  bool pre_norms = true;           ///< before attention and feed-forward
  bool post_norms = false;         ///< behind them, before the residual is added
  bool offset_norms = false;       ///< RMSNorms multiply with 1 + weight
  HeadNorm head_norm = HeadNorm::none;
  bool gelu = false;               ///< tanh-GELU gates the feed-forward, not SiLU
  bool scaled_embeddings = false;  ///< times sqrt(embed_size), rounded to their type
  double attention_softcap = 0;    ///< scores become cap tanh(score / cap); 0: they stay
  double logit_softcap = 0;
  double query_scalar = 0;         ///< scores times query_scalar^-1/2; 0: head_width()
  double rotary_fraction = 1;      ///< of a head's elements, the first ones
  std::int64_t window = 0;         ///< a query sees so many positions, its own included, in layers that slide; 0: all
  std::vector<bool> sliding = {};  ///< by layer; empty: none slides
  double local_rope_theta = 0;     ///< rope_theta of layers that slide, which are not scaled; 0: as the others
  std::int64_t padding_id = -1;    ///< its embedding's lookups have no gradient; negative: there is none

  bool slides(std::int64_t layer) const {
    return window > 0 && !sliding.empty() && sliding[static_cast<std::size_t>(layer)];
  }
};

}  // namespace fsdp
