#pragma once
// Weights of 4 bits as numbers: bit for bit what the host's kernel makes of them (lib/compute/kernels/nf4_kernels.hpp).
#include "lib/compute/cuda/kernels/device.cuh"

namespace fsdp::cuda {

constexpr int kNf4Threads = 256, kNf4OfThread = 8;

struct Nf4Tables {
  float values[16];        ///< kernels::kNf4Code
  float scale_codes[256];  ///< kernels::signed_code()
};

/// Tables are parameters of the launch, and so in constant memory.
struct Nf4Pass : fused::Nf4 {
  Nf4Tables tables;
};

__device__ __forceinline__ float nf4_scale(const Nf4Pass& a, long long block) {
  if (a.absmax != nullptr) return a.absmax[block];
  return __fadd_rn(__fmul_rn(a.tables.scale_codes[a.codes[block]], a.nested[block / 256]), *a.offset);
}

template <typename T>
__global__ void __launch_bounds__(kNf4Threads) dequantize_nf4(const __grid_constant__ Nf4Pass a) {
  // Threads of a warp ask for different codes, which constant memory would answer one after the other.
  __shared__ float code[16];
  if (threadIdx.x < 16) code[threadIdx.x] = a.tables.values[threadIdx.x];
  __syncthreads();
  const long long first = (static_cast<long long>(blockIdx.x) * kNf4Threads + threadIdx.x) * kNf4OfThread;
  if (first >= a.elements) return;
  const float scale = nf4_scale(a, first / 64);
  const unsigned bytes = *reinterpret_cast<const unsigned*>(a.packed + first / 2);
  float values[kNf4OfThread];
#pragma unroll
  for (int k = 0; k < kNf4OfThread / 2; ++k) {
    const unsigned byte = bytes >> (8 * k);
    values[2 * k] = __fmul_rn(code[(byte >> 4) & 15], scale);
    values[2 * k + 1] = __fmul_rn(code[byte & 15], scale);
  }
  store_eight(static_cast<T*>(a.out) + first, values, a.elements - first, true);
}

}  // namespace fsdp::cuda
