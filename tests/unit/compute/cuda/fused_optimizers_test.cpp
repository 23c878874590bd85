// Elementwise optimizers by the GPU kernels' source on the CPU, beside the host's kernels, whose trajectories are
// PyTorch's and the authors' (unit/engine/optim).
#include "tests/support/torch_doctest.hpp"

#include <ATen/ops/full_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "lib/engine/optim/optimizer.hpp"
#include "tests/support/emulated_ops.hpp"
#include "tests/support/tensor_compare.hpp"

using namespace fsdp;
using namespace fsdp::test;
using emulated::Order;

namespace {

constexpr double kLr = 1e-2;

struct Case {
  const char* name;
  OptimizerOptions options;
  at::ScalarType master = at::kFloat;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const auto add = [&](const char* name, const char* kind, auto change, at::ScalarType master = at::kFloat) {
    OptimizerOptions options;
    options.kind = kind;
    options.weight_decay = 0.1;
    change(options);
    cases.push_back({name, options, master});
  };
  add("sgd", "sgd", [](auto&) {});
  add("momentum", "sgd", [](auto& o) { o.momentum = 0.9; });
  add("nesterov", "sgd", [](auto& o) { o.momentum = 0.9, o.nesterov = true; });
  add("lion", "lion", [](auto& o) { o.beta2 = 0.99; });
  add("anyprecision", "anyprecision", [](auto&) {});
  add("anyprecision in float32", "anyprecision", [](auto& o) { o.variance_dtype = at::kFloat; });
  add(
      "kahan", "anyprecision", [](auto& o) { o.kahan = true, o.momentum_dtype = at::kBFloat16; }, at::kBFloat16);
  return cases;
}

/// The sizes: a lone element, one that is not a multiple of the vector, more than a thread block takes.
const std::vector<std::vector<std::int64_t>> kShapes{{1}, {7}, {8, 3}, {300}, {3, 32769}};

std::unique_ptr<Optimizer> optimizer_of(const Ops& ops, const Case& one, const std::vector<at::Tensor>& params) {
  std::vector<OptimizerParam> parts;
  for (std::size_t i = 0; i < params.size(); ++i) parts.push_back(whole_param(params[i], i % 2 == 0));
  return make_optimizer({ops, std::move(parts), one.options});
}

std::vector<at::Tensor> clones(const std::vector<at::Tensor>& from) {
  std::vector<at::Tensor> all;
  for (const auto& x : from) all.push_back(x.clone());
  return all;
}

/// A changed rounding of a 16-bit state changes an update, which is about lr, by 2^-8 of it; float32 sums differ by
/// fused multiply-adds.
double bound(const Case& one, const at::Tensor& x) {
  if (x.scalar_type() == at::kBFloat16) return std::ldexp(x.abs().max().item<double>(), -7);
  return one.options.kind == "anyprecision" ? kLr / 128 : 1e-6;
}

}  // namespace

TEST_SUITE("cuda/optimizers") {
  TEST_CASE("elementwise updates are the host's, from float32 and from bf16 gradients") {
    at::manual_seed(11);
    for (const auto& one : all_cases()) {
      CAPTURE(one.name);
      std::vector<at::Tensor> start;
      for (const auto& shape : kShapes) start.push_back(at::randn(shape).to(one.master));
      auto host_params = clones(start), params = clones(start), shuffled_params = clones(start);
      const EmulatedOps ops(Order::forward), shuffled_ops(Order::shuffled);
      const auto host = optimizer_of(host_ops(), one, host_params), device = optimizer_of(ops, one, params),
                 shuffled = optimizer_of(shuffled_ops, one, shuffled_params);
      for (int step = 0; step < 4; ++step) {
        std::vector<at::Tensor> narrow, wide;
        for (const auto& shape : kShapes) {
          narrow.push_back(at::randn(shape).to(step % 2 == 0 ? at::kBFloat16 : at::kFloat));
          wide.push_back(narrow.back().to(at::kFloat));
        }
        host->step(wide, kLr, 3.0);
        device->step(narrow, kLr, 3.0);
        shuffled->step(narrow, kLr, 3.0);
      }
      for (std::size_t i = 0; i < kShapes.size(); ++i) {
        CAPTURE(i);
        CHECK(same_bits(params[i], shuffled_params[i]));
        CHECK((params[i] - host_params[i]).abs().max().item<double>() <= bound(one, host_params[i]));
        for (const auto& state : host->states(i)) {
          CAPTURE(state.key);
          const auto got = device->state(state.key, i), want = state.values.get();
          CHECK((got - want).abs().max().item<double>() <= bound(one, want));
        }
      }
    }
  }

  TEST_CASE("an update follows the device's decision, and writes the rows in the parameters' type") {
    const Case one{"lion", all_cases()[3].options};
    const EmulatedOps ops(Order::forward);
    const std::vector<at::Tensor> start{at::randn({40, 9}), at::randn({5})}, grads{at::randn({40, 9}), at::randn({5})};
    for (const bool skipped : {false, true}) {
      auto params = clones(start);
      const auto optimizer = optimizer_of(ops, one, params);
      GradScaling scaling;
      scaling.decision = at::zeros({fused::kDecisionSize}, at::kDouble);
      scaling.decision[fused::kDivisor] = 2.0;
      scaling.decision[fused::kSkipped] = skipped ? 1.0 : 0.0;
      for (const auto& param : params) scaling.cast_params.push_back(at::full_like(param, 7, at::kBFloat16));
      optimizer->begin_step();
      optimizer->step_part({0, 1}, grads, kLr, scaling);
      for (std::size_t i = 0; i < params.size(); ++i) {
        CHECK(same_bits(params[i], start[i]) == skipped);
        CHECK(same_bits(scaling.cast_params[i],
                        skipped ? at::full_like(params[i], 7, at::kBFloat16) : params[i].to(at::kBFloat16)));
      }
    }
  }
}
