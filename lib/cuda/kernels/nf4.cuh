#pragma once
// Weights of 4 bits as numbers: bit for bit what the host's kernel makes of them (lib/kernels/nf4.hpp).
#include "lib/cuda/kernels/device.cuh"

namespace fsdp::cuda {

constexpr int kNf4Threads = 256, kNf4OfThread = 8;

/// Parameters of the launch, and so in constant memory.
struct Nf4Tables {
  float values[16];        ///< kernels::kNf4Code
  float scale_codes[256];  ///< kernels::signed_code()
};

/// Of the blocks of 64 elements: float32, or codes of 8 bits to a scale for each 256 of them and an offset.
struct Nf4Scales {
  const float* absmax;  ///< null: they are nested
  const std::uint8_t* codes;
  const float *nested, *offset;
};

__device__ __forceinline__ float nf4_scale(const Nf4Scales& s, const Nf4Tables& tables, long long block) {
  if (s.absmax != nullptr) return s.absmax[block];
  return __fadd_rn(__fmul_rn(tables.scale_codes[s.codes[block]], s.nested[block / 256]), *s.offset);
}

/// \param packed  [blocks of 64, 32 bytes], the first of two elements in the high half
template <typename T>
__global__ void __launch_bounds__(kNf4Threads)
    dequantize_nf4(T* out, const std::uint8_t* packed, Nf4Scales scales, const __grid_constant__ Nf4Tables tables,
                   long long elements) {
  // Threads of a warp ask for different codes, which constant memory would answer one after the other.
  __shared__ float code[16];
  if (threadIdx.x < 16) code[threadIdx.x] = tables.values[threadIdx.x];
  __syncthreads();
  const long long first = (static_cast<long long>(blockIdx.x) * kNf4Threads + threadIdx.x) * kNf4OfThread;
  if (first >= elements) return;
  const float scale = nf4_scale(scales, tables, first / 64);
  const unsigned bytes = *reinterpret_cast<const unsigned*>(packed + first / 2);
  float values[kNf4OfThread];
#pragma unroll
  for (int k = 0; k < kNf4OfThread / 2; ++k) {
    const unsigned byte = bytes >> (8 * k);
    values[2 * k] = __fmul_rn(code[(byte >> 4) & 15], scale);
    values[2 * k + 1] = __fmul_rn(code[byte & 15], scale);
  }
  store_eight(out + first, values, elements - first);
}

}  // namespace fsdp::cuda
