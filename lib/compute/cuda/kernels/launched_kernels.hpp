#pragma once
// fused::Kernels by CUDA, compiled with nvcc (FSDP_CUDA_KERNELS) for the architectures of CMakeLists.txt. Without nvcc,
// PyTorch's operators serve. Tests compile the same sources for the CPU with a header that emulates CUDA.
#ifdef FSDP_EMULATED_CUDA
#include FSDP_EMULATED_CUDA
#else
#include <cuda_runtime_api.h>
#endif

#include "lib/compute/ops/fused_kernels.hpp"

namespace fsdp::cuda {

class LaunchedKernels : public fused::Kernels {
 public:
  /// True if this library has code for the current device.
  static bool have_code();
#define FSDP_DECLARE(name, Pass) void name(const fused::Pass& pass) const override;
  FSDP_FUSED_KERNELS(FSDP_DECLARE)
#undef FSDP_DECLARE

 protected:
  /// The stream that kernels are launched on.
  virtual cudaStream_t stream() const = 0;
  /// Asks for the error of the launch just made. \throws what the caller's library throws
  virtual void check_launch() const = 0;
};

}  // namespace fsdp::cuda
