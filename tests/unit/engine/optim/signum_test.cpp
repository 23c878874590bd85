// Signum: its kernel and its formula of ATen's operators against the update in float64.
#include "tests/support/torch_doctest.hpp"

#include <ATen/ops/randn.h>

#include "lib/compute/ops/aten_ops.hpp"
#include "lib/compute/ops/cpu_ops.hpp"
#include "lib/engine/optim/optimizer.hpp"

namespace fsdp::test {

TEST_SUITE("optim/signum") {
  TEST_CASE("three steps by the kernel and by ATen are those of the paper, with decay and a loss scale") {
    constexpr double kLr = 0.01, kDecay = 0.1, kScale = 4;
    const CpuOps kernels;
    const AtenOps aten(at::kCPU);
    for (const Ops* ops : {static_cast<const Ops*>(&kernels), static_cast<const Ops*>(&aten)}) {
      at::manual_seed(3);
      const auto param = at::randn({37, 3});  // no multiple of a vector register
      auto want = param.to(at::kDouble), average = at::zeros_like(want);
      OptimizerOptions options;
      options.kind = "signum";
      options.weight_decay = kDecay;
      const auto optimizer = make_optimizer({*ops, {whole_param(param)}, options});
      for (int step = 0; step < 3; ++step) {
        const auto gradient = at::randn({37, 3});
        average = average * 0.9 + gradient.to(at::kDouble) * 0.1;
        want = want * (1 - kLr * kDecay) - average.sign() * kLr;
        optimizer->step({gradient * kScale}, kLr, kScale);
      }
      // Three float32 roundings of numbers near 1.
      CHECK((param.to(at::kDouble) - want).abs().max().item<double>() < 1e-6);
      CHECK((optimizer->state("momentum_buffer", 0).to(at::kDouble) - average).abs().max().item<double>() < 1e-6);
    }
  }
}

}  // namespace fsdp::test
