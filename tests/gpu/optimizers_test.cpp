// Optimizers on the GPU beside the host's kernels, whose trajectories are PyTorch's and the authors'
// (unit/engine/optim).
#include <ATen/ops/randn.h>

#include <string>
#include <utility>
#include <vector>

#include "lib/engine/optim/optimizer.hpp"
#include "tests/gpu/gpu_support.hpp"

namespace {

using namespace fsdp;

constexpr double kLr = 1e-2;
const std::vector<std::vector<std::int64_t>> kShapes{{7}, {300}, {3, 32769}, {1024, 512}};

OptimizerOptions options_of(const std::string& kind) {
  OptimizerOptions options;
  options.kind = kind;
  options.weight_decay = 0.1;
  options.eight_bit = {1, true};
  if (kind == "sgd") options.momentum = 0.9;
  return options;
}

std::unique_ptr<Optimizer> optimizer_of(const Ops& ops, const OptimizerOptions& options,
                                        const std::vector<at::Tensor>& params) {
  std::vector<OptimizerParam> parts;
  for (const auto& param : params) parts.push_back(whole_param(param));
  return make_optimizer({ops, std::move(parts), options});
}

}  // namespace

TEST_SUITE("gpu/model") {
  TEST_CASE("optimizers: the host's updates, from float32 and from bf16 gradients") {
    const auto backend = cuda_backend();
    backend->set_device(0);
    const auto ops = backend->make_ops(0);
    for (const auto& type : optimizer_types()) {
      if (type.name == "muon") continue;  // its products are the device's
      CAPTURE(std::string(type.name));
      const auto options = options_of(std::string(type.name));
      const bool narrow = takes_bf16_gradients(options) && ops->decides();
      std::vector<at::Tensor> host_params, params;
      for (const auto& shape : kShapes) {
        host_params.push_back(at::randn(shape));
        params.push_back(host_params.back().to(at::kCUDA));
      }
      const auto host = optimizer_of(host_ops(), options, host_params), device = optimizer_of(*ops, options, params);
      for (int step = 0; step < 3; ++step) {
        std::vector<at::Tensor> here, there;
        for (const auto& shape : kShapes) {
          const auto dtype = narrow && step % 2 == 0 ? at::kBFloat16 : at::kFloat;
          here.push_back(at::randn(shape).to(dtype).to(at::kFloat));
          there.push_back(here.back().to(at::kCUDA, dtype));
        }
        host->step(here, kLr, 3.0);
        device->step(there, kLr, 3.0);
      }
      for (std::size_t i = 0; i < params.size(); ++i) {
        CAPTURE(i);
        // A changed rounding of a state in few bits changes an update, which is about lr, by a hundredth.
        const auto apart = (params[i].to(at::kCPU) - host_params[i]).abs();
        CHECK(apart.max().item<double>() < 3e-2 * kLr);
        CHECK(apart.mean().item<double>() < 1e-6);
      }
    }
  }
}
