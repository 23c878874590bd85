// Optimizers by the GPU kernels' source on the CPU, beside the host's kernels, whose trajectories are
// PyTorch's and the authors' (unit/engine/optim).
#include "tests/support/torch_doctest.hpp"

#include <ATen/ops/full_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
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
  for (const char* kind : {"adamw8bit", "lion8bit", "torchao-adamw8bit", "torchao-adamw4bit"})
    add(kind, kind, [](auto& o) { o.eight_bit = {1, true}, o.beta2 = 0.99; });
  add(
      "kahan", "anyprecision", [](auto& o) { o.kahan = true, o.momentum_dtype = at::kBFloat16; }, at::kBFloat16);
  return cases;
}

/// A lone element, one that is not a multiple of the vector, more than a thread block takes; blocks of moments that are
/// whole and that are not.
const std::vector<std::vector<std::int64_t>> kShapes{{1}, {7}, {8, 3}, {300}, {3, 32769}, {40, 256}, {128}};

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

bool has_codes(const Case& one) { return optimizer_type(one.options.kind).has("min-8bit-size"); }

/// A changed rounding of a 16-bit state changes an update, which is about lr, by 2^-8 of it; float32 parameters
/// of about 5 differ by fused multiply-adds, a rounding of 2^-24 in each of four steps.
double bound(const Case& one, const at::Tensor& x) {
  if (has_codes(one)) return 1e-3;  // a moment whose last bit differs may get the neighbouring code
  if (x.scalar_type() == at::kBFloat16) return std::ldexp(x.abs().max().item<double>(), -7);
  return one.options.kind == "anyprecision" ? kLr / 128 : 3e-6;
}

}  // namespace

TEST_SUITE("cuda/optimizers") {
  TEST_CASE("updates are the host's, from float32 and from bf16 gradients") {
    at::manual_seed(11);
    for (const auto& one : all_cases()) {
      CAPTURE(one.name);
      std::vector<at::Tensor> start;
      for (const auto& shape : kShapes) {  // adapters beside bf16 master weights are float32
        const bool is_float = start.size() % 3 == 2;
        start.push_back(at::randn(shape).to(is_float ? at::kFloat : one.master));
      }
      auto host_params = clones(start), params = clones(start), shuffled_params = clones(start);
      const EmulatedOps ops(Order::forward), shuffled_ops(Order::shuffled);
      const auto host = optimizer_of(host_ops(), one, host_params), device = optimizer_of(ops, one, params),
                 shuffled = optimizer_of(shuffled_ops, one, shuffled_params);
      for (int step = 0; step < 4; ++step) {
        std::vector<at::Tensor> narrow, wide;
        for (const auto& shape : kShapes) {
          const bool is_narrow = step % 2 == 0 && takes_bf16_gradients(one.options);
          narrow.push_back(at::randn(shape).to(is_narrow ? at::kBFloat16 : at::kFloat));
          wide.push_back(narrow.back().to(at::kFloat, false, /*copy=*/true));  // PyTorch's AdamW divides them in place
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
          // The compensation is the rounding error of a parameter, so it changes entirely with the parameter's last
          // bit.
          if (state.constant || state.key == "compensation") continue;
          CAPTURE(state.key);
          if (state.values.get().scalar_type() == at::kByte) {
            const auto others = device->state(state.key, i).ne(state.values.get()).sum().item<std::int64_t>();
            CHECK(others <= 1 + state.values.get().numel() / 10000);
            continue;
          }
          const auto got = device->state(state.key, i), want = state.values.get();
          CHECK((got - want).abs().max().item<double>() <= bound(one, want));
        }
      }
    }
  }

  TEST_CASE("blocks of moments that other ranks have a part of") {
    at::manual_seed(12);
    for (const auto format : {MomentFormat::bitsandbytes_8bit, MomentFormat::torchao_4bit}) {
      for (const std::int64_t first_element : {8, 100, 118}) {
        CAPTURE(first_element);
        const auto block = kernels::moment_block(format), n = std::int64_t{3000};
        const auto blocks = (first_element % block + n + block - 1) / block;
        const auto bytes = format == MomentFormat::torchao_4bit ? n / 2 : n;
        const auto param = at::randn({n}), grad = at::randn({n}), scales = at::rand({blocks});
        const auto codes = at::randint(0, 256, {bytes}, at::kByte);
        std::vector<std::vector<at::Tensor>> results;
        const EmulatedOps emulated(Order::shuffled);
        for (const Ops* ops : {&host_ops(), static_cast<const Ops*>(&emulated)}) {
          BlockwiseUpdate u;
          u.format = format;
          u.param = param.clone();
          u.grad = grad;
          u.first = {codes.clone(), scales.clone()};
          u.second = {codes.flip(0), scales.clone()};
          u.edges = at::tensor({5.0, 7.0, 6.0, 8.0}, at::kDouble).view({2, 2});
          u.first_element = first_element;
          u.lr = kLr;
          u.beta1 = 0.9;
          u.beta2 = 0.99;
          u.eps = 1e-8;
          u.step = 3;
          ops->blockwise(u);
          results.push_back({u.param, u.first.scales, u.second.scales, u.first.codes, u.second.codes});
        }
        for (std::size_t i = 0; i < 3; ++i) CHECK(relative_error(results[1][i], results[0][i]) < 1e-6);
        for (std::size_t i = 3; i < 5; ++i) CHECK(results[1][i].ne(results[0][i]).sum().item<std::int64_t>() <= 1);
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
