// GPT-NeoX (Black et al., arXiv:2204.06745): LayerNorm, GELU, rotary positions of a part of each head, and blocks whose
// halves read the block's input side by side, each through a norm of its own.
#include <memory>
#include <string>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/models/layers/attention.hpp"
#include "lib/models/layers/embeddings.hpp"
#include "lib/models/layers/families.hpp"
#include "lib/models/layers/feed_forward.hpp"

namespace fsdp::detail {
namespace {

std::unique_ptr<DecoderBlock> make_neox_block(const BlockSite& site, const std::shared_ptr<RopeCache>& rope) {
  const auto& config = site.decoder.config;
  const auto& of = site.finder;
  const auto d = config.embed_size, f = config.ffn_hidden_size;
  auto mixer =
      make_attention(site, {of.linear("attention.query_key_value", 3 * d, d)}, of.linear("attention.dense", d, d),
                     OutputBias::in_product, make_grouped_heads(site, rope));
  auto feed_forward =
      make_exact_gelu_feed_forward(site, of.linear("mlp.dense_h_to_4h", f, d), of.linear("mlp.dense_4h_to_h", d, f));
  const BlockNorm first(site, "input_layernorm"), second(site, "post_attention_layernorm"), none(site);
  if (config.traits.parallel_norms > 0)
    return make_parallel_block(site, first, second, std::move(mixer), std::move(feed_forward));
  return make_sequential_block(site, {first, none, second, none}, std::move(mixer), std::move(feed_forward));
}

}  // namespace

void add_neox_layers(Decoder& decoder, const Ops& ops) {
  const auto& config = decoder.config;
  if (config.dropout > 0) throw UsageError("--dropout: GPT-NeoX has none here");
  const auto rope = std::make_shared<RopeCache>(ops, config, /*slides=*/false);
  decoder.layers.push_back(make_token_embedding(ops, decoder, "gpt_neox.embed_in"));
  for (int block = 0; block < config.num_layers; ++block) {
    const BlockSite site(ops, decoder, block, "gpt_neox.layers." + std::to_string(block) + ".");
    add_block(decoder, make_neox_block(site, rope));
  }
  const auto place = [&](const char* name) { return parameter_index(decoder, name); };
  decoder.loss = make_head(ops, decoder,
                           {place("gpt_neox.final_layer_norm.weight"), place("gpt_neox.final_layer_norm.bias"),
                            place(config.tie_word_embeddings ? "gpt_neox.embed_in.weight" : "lm_head.weight")});
}

}  // namespace fsdp::detail
