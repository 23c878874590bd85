// A GPU's decision about a step and the update by this decision: the kernels' source on the CPU against the formulas.
// Also passes that avoid waits of the host: dropout keys, and gate and up projections in one matrix.
#include "tests/support/emulated_ops.hpp"
#include "tests/support/tensor_compare.hpp"
#include "tests/support/torch_doctest.hpp"

#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <limits>

using namespace fsdp;
using namespace fsdp::test;
using emulated::Order;

namespace {

at::Tensor decide(const EmulatedOps& ops, double squares, double nats, int replicas, double scale, double clip) {
  return ops.decide({at::tensor({squares}, at::kDouble), at::tensor({nats, 7.0}, at::kDouble), replicas, scale, clip});
}

}  // namespace

TEST_SUITE("cuda/decided steps") {
  TEST_CASE("the divisor equals torch.nn.utils.clip_grad_norm_'s, with loss scale and replicas") {
    const EmulatedOps ops(Order::forward);
    const auto clipped = decide(ops, 2 * 36.0, 5.0, 2, 4.0, 0.5);  // the norm is 6, scaled by 4
    CHECK(clipped[fused::kDivisor].item<double>() == 4.0 / (0.5 / (6.0 / 4.0 + 1e-6)));
    const auto outcome = ops.outcome_of(clipped)();
    CHECK(outcome.norm == 6.0);
    CHECK(outcome.nats == 5.0);
    CHECK_FALSE(outcome.skipped);
    CHECK(decide(ops, 36.0, 5.0, 1, 4.0, 100.0)[fused::kDivisor].item<double>() == 4.0);
    CHECK(decide(ops, 36.0, 5.0, 1, 4.0, 0.0)[fused::kDivisor].item<double>() == 4.0);
  }

  TEST_CASE("named sums of a step come with its outcome") {
    const EmulatedOps ops(Order::forward);
    const auto decision =
        ops.decide({at::tensor({36.0}, at::kDouble), at::tensor({5.0, 7.0, 0.5, -2.0}, at::kDouble), 1, 1.0, 0.0});
    CHECK(ops.outcome_of(decision)().nats == 5.0);
    CHECK(ops.outcome_of(decision)().named == std::vector<double>{0.5, -2.0});
    CHECK(ops.outcome_of(decide(ops, 36.0, 5.0, 1, 1.0, 0.0))().named.empty());
  }

  TEST_CASE("AdamW with a decision gives the host's update and casts the parameters") {
    at::manual_seed(6);
    for (const auto type : {at::kBFloat16, at::kHalf, at::kFloat}) {
      std::vector<at::Tensor> weights, grads;
      for (const std::int64_t n : {1, 7, 8, 300, 32769}) {
        weights.push_back(at::randn({n}));
        grads.push_back(at::randn({n}));
      }
      const auto update_of = [&] {
        AdamWUpdate update;
        update.lr = 1e-2;
        update.weight_decay = 0.1;
        update.beta1 = 0.9;
        update.beta2 = 0.99;
        update.eps = 1e-8;
        update.step = 1;
        for (const auto& weight : weights) {
          update.params.push_back(weight.clone());
          update.exp_avg.push_back(at::zeros_like(weight));
          update.exp_avg_sq.push_back(at::zeros_like(weight));
        }
        for (const auto& grad : grads) update.grads.push_back(grad.clone());
        return update;
      };
      const EmulatedOps ops(Order::shuffled);
      auto want = update_of(), got = update_of(), skipped = update_of();
      want.grad_divisor = 3;
      ops.adamw(want);
      got.decision = at::tensor({3.0, 0.0, 1.0, 1.0}, at::kDouble);
      for (const auto& weight : weights) got.cast_params.push_back(at::empty(weight.sizes(), type));
      got.cast_params[1] = at::Tensor();  // not requested
      ops.adamw(got);
      skipped.decision = decide(ops, std::numeric_limits<double>::infinity(), 1.0, 1, 1.0, 1.0);
      skipped.cast_params = got.cast_params;
      ops.adamw(skipped);
      for (std::size_t i = 0; i < weights.size(); ++i) {
        CHECK(same_bits(got.params[i], want.params[i]));
        CHECK(same_bits(got.exp_avg_sq[i], want.exp_avg_sq[i]));
        if (i != 1) CHECK(same_bits(got.cast_params[i], want.params[i].to(type)));
        CHECK(same_bits(skipped.params[i], weights[i]));
        CHECK(skipped.exp_avg[i].count_nonzero().item<std::int64_t>() == 0);
      }
    }
  }

  TEST_CASE("a loss or gradients that are not finite cause no update") {
    const EmulatedOps ops(Order::forward);
    const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    for (const double bad : {inf, -inf, nan}) {
      CHECK(ops.outcome_of(decide(ops, 1.0, bad, 1, 1.0, 1.0))().skipped);
      if (bad != -inf) CHECK(ops.outcome_of(decide(ops, bad, 1.0, 1, 1.0, 1.0))().skipped);
    }
  }

  TEST_CASE("a step after one that was skipped is skipped, and keeps its norm and loss") {
    const EmulatedOps ops(Order::forward);
    const auto good = decide(ops, 36.0, 5.0, 1, 1.0, 1.0);
    const auto bad = decide(ops, 36.0, std::numeric_limits<double>::infinity(), 1, 1.0, 1.0);
    const auto behind = [&](const at::Tensor& before) {
      return ops.outcome_of(
          ops.decide({at::tensor({49.0}, at::kDouble), at::tensor({3.0, 7.0}, at::kDouble), 1, 1.0, 1.0, before}))();
    };
    CHECK_FALSE(behind(good).skipped);
    CHECK(behind(bad).skipped);
    CHECK(behind(bad).norm == 7.0);
    CHECK(behind(bad).nats == 3.0);
    CHECK(behind(bad).loss_is_finite);
  }

  TEST_CASE("dropout keys equal the host's") {
    const auto samples = at::randint(0, std::numeric_limits<std::int64_t>::max(), {5}, at::kLong);
    const DropoutSeeds place{samples, 0x9e3779b97f4a7c15u};
    for (const auto order : {Order::forward, Order::shuffled}) {
      const auto got = EmulatedOps(order).dropout_keys(place, 300, 0xd1342543de82ef95u);
      CHECK(same_bits(got, host_ops().dropout_keys(place, 300, 0xd1342543de82ef95u)));
    }
    CHECK(EmulatedOps(Order::forward).dropout_keys({samples.narrow(0, 0, 0), 1}, 300, 1).numel() == 0);
  }

  TEST_CASE("gate and up side by side in one matrix give the results of separate matrices") {
    at::manual_seed(8);
    const EmulatedOps ops(Order::shuffled);
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      for (const std::int64_t width : {8, 24, 2056, 7}) {
        const auto both = at::randn({5, 2 * width}).to(type);
        const auto grad = at::randn({5, width}).to(type);
        auto gate = both.narrow(1, 0, width), up = both.narrow(1, width, width);
        auto gate_apart = gate.contiguous(), up_apart = up.contiguous();
        CHECK(same_bits(ops.gated(GateActivation::silu, gate, up),
                        ops.gated(GateActivation::silu, gate_apart, up_apart)));
        auto got = grad.clone(), want = grad.clone();
        ops.gated_backward(GateActivation::silu, got, gate, up);
        ops.gated_backward(GateActivation::silu, want, gate_apart, up_apart);
        CHECK(same_bits(got, want));
        CHECK(same_bits(gate.contiguous(), gate_apart));
        CHECK(same_bits(up.contiguous(), up_apart));
      }
    }
  }
}
