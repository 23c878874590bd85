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
  void norm(const fused::Norm& pass) const override;
  void norm_backward(const fused::NormBackwardPass& pass) const override;
  void column_sums(const fused::ColumnSums& pass) const override;
  void column_pass(const fused::ColumnPass& pass) const override;
  void gated(const fused::Gated& pass) const override;
  void heads(const fused::Heads& pass) const override;
  void embed(const fused::Embed& pass) const override;
  void embed_backward(const fused::EmbedBackward& pass) const override;
  void cross_entropy(const fused::CrossEntropy& pass) const override;
  void sum_squares(const fused::SumSquares& pass) const override;
  void total_sum(const fused::TotalSum& pass) const override;
  void decide_step(const fused::DecideStep& pass) const override;
  void adamw(const fused::AdamW& pass) const override;
  void elementwise(const fused::Elementwise& pass) const override;
  void blockwise(const fused::Blockwise& pass) const override;
  void cast_shards(const fused::CastShards& pass) const override;
  void upcast_sums(const fused::UpcastSums& pass) const override;
  void dropout_keys(const fused::DropoutKeys& pass) const override;
  void nf4(const fused::Nf4& pass) const override;
  void fp8_largest(const fused::Fp8& pass) const override;
  void fp8_cast(const fused::Fp8& pass) const override;
  void fp8_transpose(const fused::Fp8Transpose& pass) const override;
  void band_softmax(const fused::Band& pass) const override;
  void band_softmax_backward(const fused::Band& pass) const override;

 protected:
  /// The stream that kernels are launched on.
  virtual cudaStream_t stream() const = 0;
  /// Asks for the error of the launch just made. \throws what the caller's library throws
  virtual void check_launch() const = 0;
};

}  // namespace fsdp::cuda
