// Runs Falcon's layers without an engine: gradients against finite differences, decoding.
#include "tests/unit/models/layers/decoder_rig.hpp"

#include "lib/base/types/error.hpp"
#include "lib/compute/ops/device_ops.hpp"
#include "lib/models/config/rope.hpp"
#include "tests/support/small_model.hpp"

using namespace fsdp;
using namespace fsdp::test;

TEST_SUITE("model/falcon") {
  TEST_CASE("backward: the derivative of the loss, for every parameter of every style") {
    for (auto config : small_falcons()) {
      at::manual_seed(5);
      CAPTURE(config.traits.parallel_norms);
      CAPTURE(config.traits.alibi);
      config.embed_size = 24;  // less curved losses
      config.ffn_hidden_size = 20;
      Model model(config);
      check_derivatives(model, random_batch(3, 10, 97));
    }
  }

  TEST_CASE("the plain operators give the kernels' loss and gradients, in short and long rows") {
    const DeviceOps plain_ops(at::kCPU);
    for (const auto& config : small_falcons()) {
      for (const std::int64_t length : {9, 520}) {
        if (length > 512 && config.traits.parallel_norms == 1) continue;
        at::manual_seed(8);
        const Model model(config);
        Model reference(config, plain_ops);
        reference.parameters = model.parameters;
        const auto batch = random_batch(length > 512 ? 1 : 2, length, 97);
        std::vector<GradSlot> fast, plain;
        const auto loss = model.gradients(batch, 1.0, fast);
        CHECK(reference.gradients(batch, 1.0, plain).nats == doctest::Approx(loss.nats).epsilon(1e-6));
        for (std::size_t i = 0; i < fast.size(); ++i) {
          INFO(model.decoder.parameters[i].name);
          CHECK(relative_error(fast[i].grad, plain[i].grad) < (length > 512 ? 1e-4 : 1e-5));  // sums in another order
        }
      }
    }
  }

  TEST_CASE("decode_block: token by token and in pieces gives the result of the whole row") {
    for (const auto& config : small_falcons()) {
      at::manual_seed(9);
      check_decoding(Model(config), random_batch(1, 10, 97));
    }
  }

  TEST_CASE("a rank without rows takes part and contributes nothing") {
    for (const auto& config : small_falcons()) {
      const Model model(config);
      std::vector<GradSlot> slots;
      const auto loss = model.gradients({at::empty({0}, at::kInt), at::empty({0}, at::kInt), 0, 7, {}, 0}, 1.0, slots);
      CHECK(loss.weight == 0);
      for (const auto& slot : slots) CHECK(slot.grad.abs().max().item<float>() == 0.0f);
    }
  }

  TEST_CASE("ALiBi reaches beyond max_position_embeddings; dropout is rejected") {
    auto config = small_falcons()[4];
    CHECK(longest_row(config) > 1'000'000);
    config.traits.alibi = false;
    CHECK(longest_row(config) == config.block_size);
    config.dropout = 0.1;
    CHECK_THROWS_WITH_AS(make_decoder(config, host_ops()), doctest::Contains("dropout"), RequestError);
  }
}
