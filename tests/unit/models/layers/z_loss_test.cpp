// The head's z-loss: its value by its formula, and its gradient by finite differences.
#include "tests/support/small_model.hpp"
#include "tests/support/torch_doctest.hpp"

#include <ATen/ops/logsumexp.h>

#include "tests/unit/models/layers/decoder_rig.hpp"

using namespace fsdp;
using namespace fsdp::test;

TEST_SUITE("model/z-loss") {
  TEST_CASE("value and gradient, with targets that weigh nothing in the cross-entropy") {
    at::manual_seed(5);
    Model model(small_model());
    auto batch = random_batch(3, 8, 61);
    batch.weights_N = at::zeros({24});
    std::vector<GradSlot> slots;
    const auto sums = model.gradients(batch, 1.0, slots);
    CHECK(sums.nats == 0);
    const auto value = [&] { return model.loss(batch).named.at(0).value; };
    CHECK(sums.named.at(0).value == doctest::Approx(value()).epsilon(1e-6));
    at::Tensor x;
    for (const auto& layer : model.decoder.layers) x = layer->forward(model.of(layer->parameters()), batch, x, nullptr);
    const auto logits = model.decoder.loss->logits(model.of(model.decoder.loss->parameters()), x);
    CHECK(value() == doctest::Approx(1e-4 * logits.logsumexp(1).square().sum().item<double>()).epsilon(1e-5));
    for (std::size_t p = 0; p < model.parameters.size(); ++p) {
      INFO(model.decoder.parameters[p].name);
      auto& parameter = model.parameters[p];
      const auto before = parameter.clone(), direction = slots[p].grad / slots[p].grad.norm();
      const double step = 2e-3 * before.norm().item<double>();
      parameter.copy_(before + step * direction);
      const double up = value();
      parameter.copy_(before - step * direction);
      const double down = value();
      parameter.copy_(before);
      CHECK(inner_product(slots[p].grad, direction) == doctest::Approx((up - down) / (2 * step)).epsilon(2e-2));
    }
  }
}
