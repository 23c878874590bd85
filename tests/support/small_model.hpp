#pragma once
// Small models: the smallest minGPT whose sizes divide evenly by nothing, and Falcons.
#include <vector>

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

/// Falcon in each of its styles: 7B, 40B, 11B, one head of keys per head of queries, rw, and ALiBi with shared heads.
inline std::vector<ModelConfig> small_falcons() {
  const auto style = [](std::int64_t kv_heads, int parallel_norms, bool biases, bool alibi) {
    ModelConfig config;
    config.architecture = Architecture::falcon;
    config.num_layers = 2;
    config.num_heads = 4;
    config.num_kv_heads = kv_heads;
    config.embed_size = 64;
    config.ffn_hidden_size = 96;
    config.vocab_size = 97;
    config.block_size = 32;
    config.tie_word_embeddings = parallel_norms != 1;
    config.attention_bias = config.mlp_bias = biases;
    config.traits.family = "falcon";
    config.traits.parallel_norms = parallel_norms;
    config.traits.new_decoder = parallel_norms == 2 || kv_heads == 2;
    config.traits.alibi = alibi;
    return config;
  };
  return {style(1, 1, false, false), style(2, 2, false, false), style(2, 1, false, false),
          style(4, 1, true, false),  style(4, 0, true, true),   style(2, 2, false, true)};
}

}  // namespace fsdp::test
