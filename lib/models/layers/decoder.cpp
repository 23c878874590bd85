#include "lib/models/layers/decoder.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#include "lib/base/types/index.hpp"
#include "lib/models/config/family.hpp"
#include "lib/models/layers/families.hpp"

namespace fsdp {
namespace {

struct LayersOf {
  Architecture architecture;
  void (*add)(Decoder& decoder, const Ops& ops);
};
constexpr std::array<LayersOf, 3> kLayers{{{Architecture::mingpt, detail::add_mingpt_layers},
                                           {Architecture::llama, detail::add_llama_layers},
                                           {Architecture::falcon, detail::add_falcon_layers}}};

}  // namespace

Decoder make_decoder(const ModelConfig& config, const Ops& ops, const DecoderOptions& options) {
  config.validate();
  Decoder decoder;
  decoder.config = adapted_model(config, options.lora);
  decoder.options = options;
  decoder.adapters = adapted_modules(decoder.config, options.lora);
  decoder.parameters = quantized_table(decoder.config, options.quantize);
  mark_saved_parameters(decoder.parameters, decoder.config, options.lora);
  const auto adapters = adapter_table(decoder.config, options.lora);
  decoder.parameters.insert(decoder.parameters.end(), adapters.begin(), adapters.end());
  std::ranges::find(kLayers, config.architecture, &LayersOf::architecture)->add(decoder, ops);
  return decoder;
}

std::int64_t row_alignment(const ParameterSpec& spec) { return is_token_table(spec.name) ? 64 : 1; }

at::Tensor Decoder::decode_block(int block, LayerParams params, const at::Tensor& x_ND, LayerCache& cache,
                                 std::int64_t cache_length) const {
  const DecodePart part{x_ND.size(0), cache_length, &cache};
  return element(blocks, block)->decode(params, x_ND, {&part, 1});
}

at::Tensor Decoder::last_logits(LayerParams p, const at::Tensor& x_ND) const {
  return loss->logits(p, x_ND.narrow(0, x_ND.size(0) - 1, 1));
}

void detail::add_block(Decoder& decoder, std::unique_ptr<DecoderBlock> block) {
  decoder.blocks.push_back(block.get());
  decoder.layers.push_back(std::move(block));
}

int detail::parameter_index(const Decoder& decoder, const std::string& name) {
  for (std::size_t i = 0; i < decoder.parameters.size(); ++i) {
    if (decoder.parameters[i].name == name) return static_cast<int>(i);
  }
  throw std::logic_error("the model has no parameter " + name);
}

}  // namespace fsdp
