#pragma once
// The smallest minGPT whose sizes divide evenly by nothing.
#include "lib/models/config/model_config.hpp"

namespace fsdp::test {

inline ModelConfig small_model() {
  ModelConfig config;
  config.num_layers = 2;
  config.num_heads = 2;
  config.embed_size = 16;
  config.ffn_hidden_size = 28;
  config.vocab_size = 61;
  config.block_size = 8;
  return config;
}

}  // namespace fsdp::test
