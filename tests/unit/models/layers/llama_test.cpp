// Runs Llama's layers without an engine: gradients against finite differences, decoding, rejected configurations.
#include "lib/compute/ops/device_ops.hpp"
#include "tests/unit/models/layers/decoder_rig.hpp"

#include "lib/base/types/error.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

ModelConfig small_llama() {
  ModelConfig config;
  config.architecture = Architecture::llama;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.embed_size = 24;
  config.ffn_hidden_size = 20;
  config.vocab_size = 97;
  config.block_size = 32;
  return config;
}

struct Variant {
  const char* name;
  std::int64_t kv_heads;
  bool tied, biases;
  std::int64_t head_size;
};

constexpr Variant kVariants[] = {{"grouped queries", 2, false, false, 0},
                                 {"one head of keys, tied head", 1, true, false, 0},
                                 {"biases everywhere", 4, false, true, 0},
                                 {"heads wider than the model", 2, false, true, 10}};

ModelConfig config_of(const Variant& variant) {
  auto config = small_llama();
  config.num_kv_heads = variant.kv_heads;
  config.tie_word_embeddings = variant.tied;
  config.attention_bias = config.mlp_bias = variant.biases;
  config.head_size = variant.head_size;
  return config;
}

}  // namespace

TEST_SUITE("model/llama") {
  TEST_CASE("backward: the derivative of the loss, for every parameter of every variant") {
    for (const auto& variant : kVariants) {
      at::manual_seed(5);
      INFO(std::string(variant.name));
      Model model(config_of(variant));
      check_derivatives(model, random_batch(3, 10, 97));
    }
  }

  TEST_CASE("backward: rows too long for the short-row attention") {
    at::manual_seed(6);
    auto config = small_llama();
    config.num_layers = 1;
    config.block_size = 600;
    Model model(config);
    const auto batch = random_batch(1, 520, 97);
    std::vector<GradSlot> slots;
    model.gradients(batch, 1.0 / 520, slots);
    for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
      INFO(std::string(name));
      const auto p = static_cast<std::size_t>(
          fsdp::detail::parameter_index(model.decoder, std::string("model.layers.0.self_attn.") + name + ".weight"));
      auto& parameter = model.parameters[p];
      const auto before = parameter.clone();
      const auto direction = slots[p].grad / slots[p].grad.norm();
      const double step = 1e-2 * before.norm().item<double>();
      parameter.copy_(before + step * direction);
      const double up = model.loss(batch).nats;
      parameter.copy_(before - step * direction);
      const double down = model.loss(batch).nats;
      parameter.copy_(before);
      CHECK(inner_product(slots[p].grad, direction) == doctest::Approx((up - down) / (2 * step) / 520).epsilon(3e-2));
    }
  }

  TEST_CASE("the plain operators give the kernels' loss and gradients") {
    for (const auto& variant : kVariants) {
      at::manual_seed(8);
      INFO(std::string(variant.name));
      const Model model(config_of(variant));
      const DeviceOps plain_ops(at::kCPU);
      Model reference(config_of(variant), plain_ops);
      reference.parameters = model.parameters;
      const auto batch = random_batch(2, 9, 97);
      std::vector<GradSlot> fast, plain;
      const auto loss = model.gradients(batch, 1.0, fast);
      CHECK(reference.gradients(batch, 1.0, plain).nats == doctest::Approx(loss.nats).epsilon(1e-6));
      for (std::size_t i = 0; i < fast.size(); ++i) {
        INFO(model.decoder.parameters[i].name);
        CHECK(relative_error(fast[i].grad, plain[i].grad) < 1e-5);  // float32 sums in another order
      }
    }
  }

  TEST_CASE("decode_block: token by token and in pieces gives the result of the whole row") {
    for (const auto& variant : kVariants) {
      at::manual_seed(9);
      INFO(std::string(variant.name));
      check_decoding(Model(config_of(variant)), random_batch(1, 10, 97));
    }
  }

  TEST_CASE("a rank without rows takes part and contributes nothing") {
    const Model model(small_llama());
    std::vector<GradSlot> slots;
    const auto loss = model.gradients({at::empty({0}, at::kInt), at::empty({0}, at::kInt), 0, 7, {}, 0}, 1.0, slots);
    CHECK(loss.weight == 0);
    for (const auto& slot : slots) CHECK(slot.grad.abs().max().item<float>() == 0.0f);
  }

  TEST_CASE("unsupported configurations are rejected with the field's name") {
    auto config = small_llama();
    config.rope_scaling = R"({"rope_type":"ntk","factor":4.0})";
    CHECK_THROWS_WITH_AS(make_decoder(config, host_ops()), doctest::Contains("ntk"), FormatError);
    config = small_llama();
    config.dropout = 0.1;
    CHECK_THROWS_WITH_AS(make_decoder(config, host_ops()), doctest::Contains("dropout"), RequestError);
    config = small_llama();
    config.head_size = 5;
    CHECK_THROWS_WITH_AS(make_decoder(config, host_ops()), doctest::Contains("odd"), FormatError);
  }
}
