#include "lib/compute/cuda/device_kernels.hpp"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "lib/compute/cuda/kernels/launched_kernels.hpp"
#include "lib/compute/ops/device_ops.hpp"

namespace fsdp::detail {
namespace {

class CudaKernels final : public cuda::LaunchedKernels {
 public:
  explicit CudaKernels(c10::DeviceIndex device) : device_(device) {}

 protected:
  cudaStream_t stream() const override { return c10::cuda::getCurrentCUDAStream(device_).stream(); }
  void check_launch() const override { C10_CUDA_CHECK(cudaGetLastError()); }

 private:
  c10::DeviceIndex device_;
};

}  // namespace

std::shared_ptr<const fused::Kernels> device_kernels(c10::DeviceIndex device) {
  const c10::cuda::CUDAGuard guard(device);
  if (!wants_fused_kernels() || !cuda::LaunchedKernels::have_code()) return nullptr;
  return std::make_shared<CudaKernels>(device);
}

}  // namespace fsdp::detail
