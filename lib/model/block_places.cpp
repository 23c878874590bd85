#include "lib/model/block_places.hpp"

#include <stdexcept>
#include <string>
#include <unordered_map>

namespace fsdp::detail {
namespace {

class Finder {
 public:
  Finder(const Decoder& decoder, int block) : prefix_("model.layers." + std::to_string(block) + ".") {
    const auto mine = block_parameters(decoder, block);
    for (std::size_t i = 0; i < mine.size(); ++i)
      places_.emplace(decoder.parameters[static_cast<std::size_t>(mine[i])].name, static_cast<int>(i));
  }

  /// -1: there is none.
  int find(const std::string& name) const {
    const auto found = places_.find(prefix_ + name);
    return found == places_.end() ? -1 : found->second;
  }

  Linear linear(const std::string& module, std::int64_t rows, std::int64_t columns) const {
    const auto weight = module + ".weight";
    const int place = find(weight);
    if (place < 0) throw std::logic_error("the block has no " + weight);
    Linear linear;
    linear.weight = static_cast<std::size_t>(place);
    linear.bias = find(module + ".bias");
    linear.absmax = find(weight + kAbsmax);
    linear.nested_absmax = find(weight + kNestedAbsmax);
    linear.nested_offset = find(weight + kNestedOffset);
    linear.lora_a = find(module + ".lora_A.weight");
    linear.lora_b = find(module + ".lora_B.weight");
    linear.magnitude = find(module + ".lora_magnitude_vector");
    linear.rows = rows;
    linear.columns = columns;
    return linear;
  }

 private:
  std::string prefix_;
  std::unordered_map<std::string, int> places_;
};

}  // namespace

BlockPlaces::BlockPlaces(const Decoder& decoder, int block) {
  const Finder finder(decoder, block);
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
