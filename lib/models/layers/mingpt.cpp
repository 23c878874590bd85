// minGPT (Karpathy): token and position embeddings, pre-norm blocks with tanh-GELU, head tied to the token embedding.
#include <string>
#include <utility>

#include "lib/models/layers/attention/attention.hpp"
#include "lib/models/layers/embeddings.hpp"
#include "lib/models/layers/families.hpp"
#include "lib/models/layers/feed_forward.hpp"

namespace fsdp::detail {
namespace {

std::unique_ptr<DecoderBlock> make_mingpt_block(const Ops& ops, const Decoder& decoder, int index) {
  const auto d = decoder.config.embed_size, f = decoder.config.ffn_hidden_size;
  BlockSite site(ops, decoder, index, "transformer.h." + std::to_string(index) + ".");
  // The adapters' dropout follows the model's own.
  site.first_adapter_place += static_cast<std::uint64_t>(decoder.config.num_layers) * 4;
  const auto& of = site.finder;
  auto mixer = make_attention(site, {of.linear("attn.c_attn", 3 * d, d)}, of.linear("attn.c_proj", d, d),
                              OutputBias::in_sum_and_norm, make_packed_heads(site, {ops, decoder.config}, nullptr));
  auto feed_forward = make_tanh_gelu_feed_forward(site, of.linear("mlp.c_fc", f, d), of.linear("mlp.c_proj", d, f));
  const BlockNorm none(site);
  return make_sequential_block(site, {BlockNorm(site, "ln_1"), none, BlockNorm(site, "ln_2"), none}, std::move(mixer),
                               std::move(feed_forward));
}

}  // namespace

void add_mingpt_layers(Decoder& decoder, const Ops& ops) {
  decoder.layers.push_back(make_sum_embedding(ops, decoder, "transformer.wte", "transformer.wpe"));
  for (int block = 0; block < decoder.config.num_layers; ++block)
    add_block(decoder, make_mingpt_block(ops, decoder, block));
  const auto place = [&](const std::string& name) { return parameter_index(decoder, name); };
  decoder.loss = make_head(
      ops, decoder,
      {place("transformer.ln_f.weight"), place("transformer.ln_f.bias"), place(head_parameter(decoder.config))});
}

}  // namespace fsdp::detail
