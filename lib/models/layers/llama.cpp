// Llama's kind of decoders: token embedding, blocks with rotary positions, RMSNorm and a gated feed-forward.
#include <memory>
#include <string>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/models/layers/attention/attention.hpp"
#include "lib/models/layers/embeddings.hpp"
#include "lib/models/layers/families.hpp"
#include "lib/models/layers/feed_forward.hpp"

namespace fsdp::detail {
namespace {

std::unique_ptr<Mixer> make_llama_mixer(const BlockSite& site, std::shared_ptr<RopeCache> rope) {
  const auto& config = site.decoder.config;
  const auto& of = site.finder;
  const auto d = config.embed_size, queries = config.num_heads * config.head_width(),
             keys = config.kv_heads() * config.head_width();
  std::vector<Linear> in;
  if (config.traits.fused_projections) {
    in = {of.linear("self_attn.qkv_proj", queries + 2 * keys, d)};
  } else {
    in = {of.linear("self_attn.q_proj", queries, d), of.linear("self_attn.k_proj", keys, d),
          of.linear("self_attn.v_proj", keys, d)};
  }
  const QkNorms norms(site.ops, config, of, "self_attn.q_norm.weight", "self_attn.k_norm.weight");
  return make_attention(site, in, of.linear("self_attn.o_proj", d, queries), OutputBias::in_sum,
                        make_packed_heads(site, norms, std::move(rope)));
}

std::unique_ptr<FeedForward> make_llama_feed_forward(const BlockSite& site) {
  const auto& config = site.decoder.config;
  const auto& of = site.finder;
  const auto d = config.embed_size, f = config.ffn_hidden_size;
  std::vector<Linear> in;
  if (config.traits.fused_projections) {
    in = {of.linear("mlp.gate_up_proj", 2 * f, d)};
  } else {
    in = {of.linear("mlp.gate_proj", f, d), of.linear("mlp.up_proj", f, d)};
  }
  return make_gated_feed_forward(site, in, of.linear("mlp.down_proj", d, f),
                                 config.traits.gelu ? GateActivation::gelu_tanh : GateActivation::silu);
}

/// post_attention_layernorm is Llama's norm before the feed-forward; families with norms after the halves use the name
/// for one of these. Where a family lacks a norm, it has no parameter of the name.
BlockNorms llama_norms(const BlockSite& site) {
  const BlockNorm first(site, "input_layernorm"), second(site, "post_attention_layernorm");
  if (!site.decoder.config.traits.post_norms) return {first, BlockNorm(site), second, BlockNorm(site)};
  return {first, second, BlockNorm(site, "pre_feedforward_layernorm"), BlockNorm(site, "post_feedforward_layernorm")};
}

}  // namespace

void add_llama_layers(Decoder& decoder, const Ops& ops) {
  const auto& config = decoder.config;
  if (config.dropout > 0) throw RequestError("Llama-like models have no dropout", Remedy::of_dropout);
  const auto rope = std::make_shared<RopeCache>(ops, config, /*slides=*/false);
  auto local_rope = rope;
  if (config.traits.local_rope_theta > 0) local_rope = std::make_shared<RopeCache>(ops, config, /*slides=*/true);
  decoder.layers.push_back(make_token_embedding(ops, decoder, "model.embed_tokens"));
  for (int block = 0; block < config.num_layers; ++block) {
    const BlockSite site(ops, decoder, block, "model.layers." + std::to_string(block) + ".");
    add_block(decoder, make_sequential_block(site, llama_norms(site),
                                             make_llama_mixer(site, config.traits.slides(block) ? local_rope : rope),
                                             make_llama_feed_forward(site)));
  }
  decoder.loss = make_head(
      ops, decoder,
      {parameter_index(decoder, "model.norm.weight"), parameter_index(decoder, head_parameter(decoder.config))});
}

}  // namespace fsdp::detail
