#include "lib/models/layers/decoder.hpp"

#include <stdexcept>
#include <string>

#include "lib/base/error.hpp"

namespace fsdp {

Decoder make_decoder(const ModelConfig& config, const Ops& ops, const DecoderOptions& options) {
  config.validate();
  Decoder decoder;
  decoder.config = config;
  decoder.options = options;
  decoder.parameters = quantized_table(config, options.quantize);
  const auto adapters = adapter_table(config, options.lora);
  decoder.parameters.insert(decoder.parameters.end(), adapters.begin(), adapters.end());
  if (config.architecture == Architecture::llama) {
    detail::add_llama_layers(decoder, ops);
  } else {
    detail::add_mingpt_layers(decoder, ops);
  }
  return decoder;
}

std::int64_t row_alignment(const ParameterSpec& spec) {
  return spec.name == "transformer.wte.weight" || spec.name == "model.embed_tokens.weight" ||
                 spec.name == "lm_head.weight"
             ? 64
             : 1;
}

at::Tensor Decoder::decode_block(int block, LayerParams params, const at::Tensor& x_ND, LayerCache& cache,
                                 std::int64_t cache_length) const {
  return blocks[static_cast<std::size_t>(block)]->decode(params, x_ND, cache, cache_length);
}

at::Tensor Decoder::last_logits(LayerParams p, const at::Tensor& x_ND) const {
  return loss->logits(p, x_ND.narrow(0, x_ND.size(0) - 1, 1));
}

void detail::add_block(Decoder& decoder, std::unique_ptr<DecoderBlock> block) {
  decoder.blocks.push_back(block.get());
  decoder.layers.push_back(std::move(block));
}

std::vector<int> detail::block_parameters(const Decoder& decoder, int block) {
  std::vector<int> mine;
  for (std::size_t i = 0; i < decoder.parameters.size(); ++i) {
    if (decoder.parameters[i].block == block) mine.push_back(static_cast<int>(i));
  }
  return mine;
}

int detail::parameter_index(const Decoder& decoder, const std::string& name) {
  for (std::size_t i = 0; i < decoder.parameters.size(); ++i) {
    if (decoder.parameters[i].name == name) return static_cast<int>(i);
  }
  throw std::logic_error("the model has no parameter " + name);
}

}  // namespace fsdp
