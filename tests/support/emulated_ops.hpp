#pragma once
// FusedOps whose kernels are those of lib/cuda, run on the CPU (emulated_cuda.hpp).
#include "lib/cuda/kernels/launched_kernels.hpp"
#include "lib/ops/fused_ops.hpp"

namespace fsdp::test {

class EmulatedKernels final : public cuda::LaunchedKernels {
 public:
  explicit EmulatedKernels(emulated::Order order) : order_(order) {}

 protected:
  cudaStream_t stream() const override { return &order_; }
  void check_launch() const override {}

 private:
  emulated::Order order_;
};

/// All tensors count as the device's.
class EmulatedOps final : public FusedOps {
 public:
  explicit EmulatedOps(emulated::Order order) : FusedOps(at::kCPU, std::make_shared<EmulatedKernels>(order)) {}
  bool is_on_host(const at::Tensor&) const override { return false; }
};

}  // namespace fsdp::test
