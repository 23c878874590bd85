#include "lib/models/layers/block_places.hpp"

#include <string>

#include "lib/models/layers/place_finder.hpp"

namespace fsdp::detail {

BlockPlaces::BlockPlaces(const Decoder& decoder, int block) {
  const PlaceFinder finder(decoder, block, "model.layers." + std::to_string(block) + ".");
  const auto& config = decoder.config;
  const auto& traits = config.traits;
  const auto d = config.embed_size, f = config.ffn_hidden_size;
  const auto queries = config.num_heads * config.head_width(), keys = config.kv_heads() * config.head_width();
  if (traits.fused_projections) {
    qkv = finder.linear("self_attn.qkv_proj", queries + 2 * keys, d);
    gate_up = finder.linear("mlp.gate_up_proj", 2 * f, d);
  } else {
    q = finder.linear("self_attn.q_proj", queries, d);
    k = finder.linear("self_attn.k_proj", keys, d);
    v = finder.linear("self_attn.v_proj", keys, d);
    gate = finder.linear("mlp.gate_proj", f, d);
    up = finder.linear("mlp.up_proj", f, d);
  }
  o = finder.linear("self_attn.o_proj", d, queries);
  down = finder.linear("mlp.down_proj", d, f);
  q_norm = finder.find("self_attn.q_norm.weight");
  k_norm = finder.find("self_attn.k_norm.weight");
  // Llama's name for the norm before the feed-forward is that of the one behind attention where there is one.
  const int after_attention = finder.find("post_attention_layernorm.weight");
  input_norm = finder.find("input_layernorm.weight");
  post_attention_norm = traits.post_norms ? after_attention : -1;
  pre_ffn_norm = traits.post_norms ? finder.find("pre_feedforward_layernorm.weight") : after_attention;
  post_ffn_norm = finder.find("post_feedforward_layernorm.weight");
}

std::vector<Linear> BlockPlaces::qkv_group(const DecoderTraits& traits) const {
  if (traits.fused_projections) return {qkv};
  return {q, k, v};
}

std::vector<Linear> BlockPlaces::gate_up_group(const DecoderTraits& traits) const {
  if (traits.fused_projections) return {gate_up};
  return {gate, up};
}

}  // namespace fsdp::detail
