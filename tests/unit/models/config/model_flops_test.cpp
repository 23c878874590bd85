#include "lib/models/config/model_flops.hpp"

#include <doctest/doctest.h>

#include "lib/models/config/adapter_config.hpp"
#include "lib/models/config/quantize_config.hpp"
#include "lib/models/config/trainable.hpp"

using namespace fsdp;

namespace {

ModelConfig wide_as_24() {
  ModelConfig config;
  config.embed_size = 24;
  config.ffn_hidden_size = 96;
  config.vocab_size = 50;
  return config;
}

// Counted by hand for the model above and 64 positions; a token attends to 32 on average.
constexpr double kBlock = 12 * 24 * 24 + 13 * 24;  // parameters: matrices, biases and norms
constexpr double kAttention = 4 * 32 * 24;         // of a block, forward
constexpr double kHead = 50 * 24, kNorm = 2 * 24;

/// \param adapters  targets of adapters of rank 2; empty: none
ModelFlops flops_of(const FreezeOptions& options, const std::vector<std::string>& adapters = {},
                    const QuantizeConfig& quantize = {}) {
  const auto config = wide_as_24();
  auto table = quantized_table(config, quantize);
  LoraConfig lora;
  lora.rank = adapters.empty() ? 0 : 2;
  lora.targets = adapters;
  const auto more = adapter_table(config, lora);
  table.insert(table.end(), more.begin(), more.end());
  return flops_per_token(config, 64, table, trainable_parameters(table, tied_names(config), options));
}

}  // namespace

TEST_SUITE("config/model_flops") {
  TEST_CASE("all trained: 6 per parameter of a matrix product, and three times attention's forward") {
    const auto flops = flops_of({});
    CHECK(flops.forward == 2 * (12 * kBlock + kHead + kNorm) + 12 * kAttention);
    CHECK(flops.backward == 2 * flops.forward);
    CHECK(flops.recomputable == 2 * 12 * kBlock + 12 * kAttention);
    CHECK(flops_per_token(wide_as_24(), 64).total() == flops.total());
  }

  TEST_CASE("CodeLlama-7b: the untied head counts, embedding lookups do not") {
    ModelConfig config;
    config.architecture = Architecture::llama;
    config.num_layers = config.num_heads = config.num_kv_heads = 32;
    config.embed_size = 4096;
    config.ffn_hidden_size = 11008;
    config.vocab_size = 32016;
    CHECK(flops_per_token(config, 512).total() ==
          doctest::Approx(6.0 * (6738546688.0 - 131137536.0) + 6.0 * 32 * 512 * 4096));
  }

  TEST_CASE("frozen blocks below the first trained block have no backward pass") {
    const auto flops = flops_of({{"transformer.h.[6-9]", "transformer.h.1[01]"}, {}});
    CHECK(flops.forward == flops_of({}).forward);
    CHECK(flops.backward == 6 * (4 * kBlock + 2 * kAttention) + 2 * kHead + 2 * kNorm);
    CHECK(flops.recomputable == 6 * (2 * kBlock + kAttention));
    const auto norm = flops_of({{"transformer.ln_f"}, {}});
    CHECK(norm.backward == 2 * kHead + 4 * kNorm);
    CHECK(norm.recomputable == 0);
  }

  TEST_CASE("frozen blocks above the first trained block compute the gradients of their inputs") {
    const auto flops = flops_of({{"transformer.h.9"}, {}});
    CHECK(flops.backward == 4 * kBlock + 2 * 2 * kBlock + 3 * 2 * kAttention + 2 * kHead + 2 * kNorm);
  }

  TEST_CASE("adapters in all blocks: adapters and the input gradients of all frozen matrices count") {
    constexpr double kAdapter = 2 * 24 + 96 * 2;  // for c_fc [96, 24], rank 2
    const auto flops = flops_of({}, {"c_fc"});
    CHECK(flops.forward == 2 * (12 * (kBlock + kAdapter) + kHead + kNorm) + 12 * kAttention);
    CHECK(flops.backward == 12 * (2 * kBlock + 4 * kAdapter + 2 * kAttention) + 2 * kHead + 2 * kNorm);
    // 4-bit matrices are dequantised before the product
    CHECK(flops_of({}, {"c_fc"}, {true, true}).total() == flops.total());
  }

  TEST_CASE("adapters in upper blocks only: lower blocks have no backward pass") {
    constexpr double kAdapter = 2 * 24 + 96 * 2;
    const auto flops = flops_of({}, {"transformer.h.10.mlp.c_fc", "transformer.h.11.mlp.c_fc"});
    CHECK(flops.forward == 2 * (12 * kBlock + 2 * kAdapter + kHead + kNorm) + 12 * kAttention);
    CHECK(flops.backward == 2 * (2 * kBlock + 4 * kAdapter + 2 * kAttention) + 2 * kHead + 2 * kNorm);
    CHECK(flops.recomputable == 2 * (2 * (kBlock + kAdapter) + kAttention));
    CHECK(flops.total() == 259296);
  }

  TEST_CASE("frozen adapters below the trained ones only run forward") {
    constexpr double kAdapter = 2 * 24 + 96 * 2;
    const auto flops = flops_of({{"transformer.h.11"}, {}}, {"c_fc"});
    CHECK(flops.forward == 2 * (12 * (kBlock + kAdapter) + kHead + kNorm) + 12 * kAttention);
    CHECK(flops.backward == 2 * kBlock + 4 * kAdapter + 2 * kAttention + 2 * kHead + 2 * kNorm);
  }
}
