#pragma once
// Kernels of our own, as host code launches them. Built where there is an nvcc (FSDP_CUDA_KERNELS); else PyTorch's
// operators serve.
#include <cuda_runtime_api.h>

#include <cstdint>

namespace fsdp::cuda {

enum class Float { f32, bf16, fp16 };

/// All pointers are the device's; those of elements at multiples of 16 bytes.
struct Nf4Launch {
  void* out;                     ///< [elements]
  const std::uint8_t* packed;    ///< [blocks of 64, 32]
  const float* absmax;           ///< [blocks]; null: nested
  const std::uint8_t* codes;     ///< [blocks]
  const float *nested, *offset;  ///< [blocks / 256], [1]
  std::int64_t elements;
};

cudaError_t launch_dequantize_nf4(Float type, const Nf4Launch& args, cudaStream_t stream);

}  // namespace fsdp::cuda
