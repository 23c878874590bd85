// Whole decoders with the CUDA kernels' source, run on the CPU, between products, against the host's decoders.
#include "tests/support/emulated_ops.hpp"
#include "tests/support/small_model.hpp"
#include "tests/unit/models/layers/decoder_rig.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

ModelConfig small_mingpt(double dropout) {
  ModelConfig config;
  config.num_layers = 2;
  config.num_heads = 2;
  config.embed_size = 64;
  config.ffn_hidden_size = 96;
  config.vocab_size = 97;
  config.block_size = 10;
  config.dropout = dropout;
  return config;
}

ModelConfig small_llama(std::int64_t kv_heads, bool biases) {
  ModelConfig config = small_mingpt(0);
  config.architecture = Architecture::llama;
  config.num_kv_heads = kv_heads;
  config.attention_bias = config.mlp_bias = biases;
  return config;
}

/// Models that together have every trait.
std::vector<ModelConfig> small_families() {
  auto gemma = small_llama(1, false);
  gemma.num_layers = 3;
  gemma.embed_size = 48;
  gemma.head_size = 16;
  gemma.tie_word_embeddings = true;
  auto& traits = gemma.traits;
  traits.offset_norms = traits.gelu = traits.scaled_embeddings = traits.post_norms = true;
  traits.head_norm = HeadNorm::per_head;
  traits.attention_softcap = 2;
  traits.logit_softcap = 3;
  traits.query_scalar = 5;
  traits.window = 4;
  traits.sliding = {true, false, true};
  traits.local_rope_theta = 100;
  traits.padding_id = 7;
  auto phi = small_llama(2, false);
  phi.traits.fused_projections = true;
  phi.traits.rotary_fraction = 0.5;
  auto olmo = small_llama(2, false);
  olmo.traits.pre_norms = false;
  olmo.traits.post_norms = true;
  olmo.traits.head_norm = HeadNorm::all_heads;
  auto qwen = small_llama(1, false);
  qwen.traits.qkv_bias = true;
  std::vector<ModelConfig> all{gemma, phi, olmo, qwen};
  for (const auto& falcon : small_falcons()) all.push_back(falcon);
  return all;
}

}  // namespace

TEST_SUITE("cuda/fused models") {
  TEST_CASE("loss and gradients of minGPT, with and without dropout, of the Llama family and of Falcon") {
    const EmulatedOps fused(emulated::Order::shuffled);
    auto configs = small_families();
    for (const auto& config : {small_mingpt(0), small_mingpt(0.2), small_llama(2, false), small_llama(1, true)})
      configs.push_back(config);
    for (const auto& config : configs) {
      at::manual_seed(3);
      const Model model(config);
      Model there(config, fused);
      there.parameters = model.parameters;
      auto batch = random_batch(3, 10, 97);
      batch.targets_N.narrow(0, 4, 3).fill_(-1);
      std::vector<GradSlot> want, got;
      const auto loss = model.gradients(batch, 1.0, want);
      const auto sum = there.gradients(batch, 1.0, got);
      CHECK(sum.weight == loss.weight);
      CHECK(sum.nats == doctest::Approx(loss.nats).epsilon(1e-6));
      for (std::size_t i = 0; i < want.size(); ++i) {
        INFO(model.decoder.parameters[i].name);
        CHECK(relative_error(got[i].grad, want[i].grad) < 1e-5);  // float32 sums in another order
      }
    }
  }

  TEST_CASE("bf16: gradients are about as far from float32 as the host's") {
    const EmulatedOps fused(emulated::Order::forward);
    auto configs = small_families();
    for (const auto& config : {small_mingpt(0), small_llama(2, false), small_llama(1, true)}) configs.push_back(config);
    for (const auto& config : configs) {
      at::manual_seed(3);
      const Model model(config);
      Model host(config), there(config, fused);
      for (std::size_t i = 0; i < model.parameters.size(); ++i)
        host.parameters[i] = there.parameters[i] = model.parameters[i].to(at::kBFloat16);
      const auto batch = random_batch(3, 10, 97);
      std::vector<GradSlot> want, hosts, got;
      model.gradients(batch, 1.0, want);
      host.gradients(batch, 1.0, hosts);
      there.gradients(batch, 1.0, got);
      for (std::size_t i = 0; i < want.size(); ++i) {
        INFO(model.decoder.parameters[i].name);
        // Most are nearer than the host's, which are up to 10 % away (norms of k). A bias of 32 numbers is twice as
        // far.
        CHECK(relative_error(got[i].grad, want[i].grad) <
              std::max(8e-3, 3 * relative_error(hosts[i].grad, want[i].grad)));
      }
    }
  }
}
