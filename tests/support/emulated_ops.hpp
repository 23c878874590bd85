#pragma once
// DeviceOps that run the kernels of lib/compute/cuda on the CPU (emulated_cuda.hpp).
#include "lib/compute/cuda/kernels/launched_kernels.hpp"
#include "lib/compute/ops/device_ops.hpp"
#include "lib/compute/ops/device_work.hpp"

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

/// Treats all tensors as device tensors.
class EmulatedOps : public DeviceOps {
 public:
  /// \param recorder  null: nothing is recorded
  explicit EmulatedOps(emulated::Order order, std::shared_ptr<const WorkRecorder> recorder = nullptr)
      : DeviceOps(at::kCPU, std::make_shared<EmulatedKernels>(order)), recorder_(std::move(recorder)) {}
  bool is_on_host(const at::Tensor&) const override { return false; }
  const WorkRecorder* recorder() const override { return recorder_.get(); }

 private:
  std::shared_ptr<const WorkRecorder> recorder_;
};

}  // namespace fsdp::test
