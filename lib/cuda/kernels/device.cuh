#pragma once
// CUDA's device language, for nvcc, or for a host compiler by a header that emulates it (tests/support).
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include FSDP_EMULATED_CUDA
#endif

#include <cstdint>

namespace fsdp::cuda {

/// float32 into the type of the elements, once rounded, to nearest, ties to even.
__device__ __forceinline__ void narrow(float& to, float x) { to = x; }
__device__ __forceinline__ void narrow(__nv_bfloat16& to, float x) { to = __float2bfloat16_rn(x); }
__device__ __forceinline__ void narrow(__half& to, float x) { to = __float2half_rn(x); }

/// Eight elements of which the first is at a multiple of 16 bytes: stores of 128 bits.
/// \param count  fewer are stored one by one
template <typename T>
__device__ __forceinline__ void store_eight(T* to, const float (&values)[8], long long count) {
  struct alignas(16) {
    T items[8];
  } all;
#pragma unroll
  for (int k = 0; k < 8; ++k) narrow(all.items[k], values[k]);
  if (count >= 8) {
    const auto* from = reinterpret_cast<const uint4*>(&all);
#pragma unroll
    for (unsigned k = 0; k < sizeof(all) / sizeof(uint4); ++k) reinterpret_cast<uint4*>(to)[k] = from[k];
    return;
  }
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    if (k < count) to[k] = all.items[k];
  }
}

}  // namespace fsdp::cuda
