// Falcon (Almazrouei et al., arXiv:2311.16867): LayerNorm, GELU, and blocks whose attention and feed-forward read the
// block's input side by side; older ones follow each other and have ALiBi in place of rotary positions.
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

std::unique_ptr<DecoderBlock> make_falcon_block(const BlockSite& site, std::unique_ptr<Heads> heads) {
  const auto& config = site.decoder.config;
  const auto& of = site.finder;
  const auto d = config.embed_size, f = config.ffn_hidden_size, queries = config.num_heads * config.head_width(),
             keys = config.kv_heads() * config.head_width();
  auto mixer = make_attention(site, {of.linear("self_attention.query_key_value", queries + 2 * keys, d)},
                              of.linear("self_attention.dense", d, queries), OutputBias::in_product, std::move(heads));
  auto feed_forward =
      make_exact_gelu_feed_forward(site, of.linear("mlp.dense_h_to_4h", f, d), of.linear("mlp.dense_4h_to_h", d, f));
  const auto norms = config.traits.parallel_norms;
  const BlockNorm first(site, norms == 2 ? "ln_attn" : "input_layernorm");
  const BlockNorm second(site, norms == 2 ? "ln_mlp" : "post_attention_layernorm");
  if (norms > 0) return make_parallel_block(site, first, second, std::move(mixer), std::move(feed_forward));
  const BlockNorm none(site);
  return make_sequential_block(site, {first, none, second, none}, std::move(mixer), std::move(feed_forward));
}

}  // namespace

void add_falcon_layers(Decoder& decoder, const Ops& ops) {
  const auto& config = decoder.config;
  if (config.dropout > 0) throw RequestError("Falcon has no dropout here", Remedy::of_dropout);
  at::Tensor slopes_H;
  std::shared_ptr<RopeCache> rope;
  if (config.traits.alibi) {
    slopes_H = alibi_slopes(ops, config.num_heads);
  } else {
    rope = std::make_shared<RopeCache>(ops, config, /*slides=*/false);
  }
  decoder.layers.push_back(make_token_embedding(ops, decoder, "transformer.word_embeddings"));
  for (int block = 0; block < config.num_layers; ++block) {
    const BlockSite site(ops, decoder, block, "transformer.h." + std::to_string(block) + ".");
    add_block(decoder, make_falcon_block(site, config.traits.alibi ? make_alibi_heads(site, slopes_H)
                                                                   : make_grouped_heads(site, rope)));
  }
  const auto place = [&](const std::string& name) { return parameter_index(decoder, name); };
  decoder.loss = make_head(
      ops, decoder,
      {place("transformer.ln_f.weight"), place("transformer.ln_f.bias"), place(head_parameter(decoder.config))});
}

}  // namespace fsdp::detail
