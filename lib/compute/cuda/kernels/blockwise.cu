// AdamW and Lion with quantized moments (lib/compute/kernels/blockwise.hpp). A warp takes a block of moments: its lanes
// decode, update and encode consecutive elements, and agree on the new scale by shuffles.
#include "lib/compute/cuda/kernels/device.cuh"
#include "lib/compute/cuda/kernels/launched_kernels.hpp"

namespace fsdp::cuda {

constexpr int kBlockwiseThreads = 256, kWarpsOfBlockwise = kBlockwiseThreads / 32;
/// Blocks of moments that a warp takes one after the other, for which the tables are loaded once.
constexpr int kBlocksOfWarp = 4;

/// Numbers of the codes, and the least number of each code from the second on, in shared memory.
struct MomentTable {
  float values[256], thresholds[256];

  __device__ __forceinline__ void load(const fused::Moment& moment) {
    for (int k = static_cast<int>(threadIdx.x); k < moment.codes_count; k += kBlockwiseThreads) {
      values[k] = moment.values[k];
      thresholds[k] = k + 1 < moment.codes_count ? moment.thresholds[k] : INFINITY;
    }
  }

  /// \param x  divided by the scale
  __device__ __forceinline__ unsigned code_of(float x, int codes) const {
    x = x < 1.0f ? x : 1.0f;  // NaN, from an infinite scale, becomes 1
    x = x > -1.0f ? x : -1.0f;
    int code = 0;
    for (int half = codes / 2; half > 0; half /= 2) code += x >= thresholds[code + half - 1] ? half : 0;
    return static_cast<unsigned>(code);
  }
};

__device__ __forceinline__ float warp_largest(float x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
  return x;
}

/// This lane's elements of a block of moments: `count` elements from `at` on, of which those before the tensor's first
/// do not exist.
template <int kPer>
struct LaneElements {
  long long at;
  int from, to;  ///< that exist
  bool whole;

  __device__ __forceinline__ LaneElements(const fused::Blockwise& a, long long block)
      : at(block * (32 * kPer) - a.offset + (threadIdx.x % 32) * kPer) {
    const long long left = a.elements - at;
    from = at < 0 ? static_cast<int>(at < -kPer ? kPer : -at) : 0;
    to = left < kPer ? static_cast<int>(left < 0 ? 0 : left) : kPer;
    whole = from == 0 && to == kPer;
  }

  __device__ __forceinline__ void load(float (&x)[kPer], const float* data, bool packed) const {
    if (whole && packed) {
#pragma unroll
      for (int k = 0; k < kPer; k += 4) {
        const auto four = *reinterpret_cast<const uint4*>(data + at + k);
        x[k] = __uint_as_float(four.x);
        x[k + 1] = __uint_as_float(four.y);
        x[k + 2] = __uint_as_float(four.z);
        x[k + 3] = __uint_as_float(four.w);
      }
      return;
    }
#pragma unroll
    for (int k = 0; k < kPer; ++k) x[k] = k >= from && k < to ? data[at + k] : 0.0f;
  }

  __device__ __forceinline__ void store(float* data, const float (&x)[kPer], bool packed) const {
    if (whole && packed) {
#pragma unroll
      for (int k = 0; k < kPer; k += 4)
        *reinterpret_cast<uint4*>(data + at + k) = {__float_as_uint(x[k]), __float_as_uint(x[k + 1]),
                                                    __float_as_uint(x[k + 2]), __float_as_uint(x[k + 3])};
      return;
    }
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      if (k >= from && k < to) data[at + k] = x[k];
    }
  }

  /// \param halves  two codes per byte, the first in the high half; `at` and `to` are even
  __device__ __forceinline__ void decode(float (&x)[kPer], const std::uint8_t* codes, const MomentTable& table,
                                         bool halves) const {
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      x[k] = 0.0f;
      if (k < from || k >= to) continue;
      const unsigned byte = codes[halves ? (at + k) / 2 : at + k];
      x[k] = table.values[!halves ? byte : k % 2 == 0 ? byte >> 4 : byte & 15u];
    }
  }

  __device__ __forceinline__ void encode(std::uint8_t* to_codes, const float (&x)[kPer], const fused::Moment& moment,
                                         const MomentTable& table, float scale) const {
    unsigned codes[kPer];
    const float inverse = 1.0f / scale;
#pragma unroll
    for (int k = 0; k < kPer; ++k)
      codes[k] = scale == 0.0f ? 0u : table.code_of(moment.divides ? x[k] / scale : x[k] * inverse, moment.codes_count);
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      if (k < from || k >= to) continue;
      if (moment.codes_count > 16) to_codes[at + k] = static_cast<std::uint8_t>(codes[k]);
      if (moment.codes_count <= 16 && k % 2 == 1)
        to_codes[(at + k) / 2] = static_cast<std::uint8_t>(codes[k - 1] << 4 | codes[k]);
    }
  }
};

template <bool kLion, int kPer>
__global__ void __launch_bounds__(kBlockwiseThreads) blockwise(fused::Blockwise a) {
  __shared__ MomentTable tables[kLion ? 1 : 2];
  tables[0].load(a.first);
  if constexpr (!kLion) tables[1].load(a.second);
  __syncthreads();
  const bool halves = a.first.codes_count <= 16;
  const long long warp = static_cast<long long>(blockIdx.x) * kWarpsOfBlockwise + threadIdx.x / 32;
  for (int turn = 0; turn < kBlocksOfWarp; ++turn) {
    const long long block = warp * kBlocksOfWarp + turn;
    if (block >= a.blocks) return;
    const LaneElements<kPer> mine(a, block);
    float param[kPer], grad[kPer], first[kPer], second[kPer];
    mine.load(param, a.param, a.packed);
    mine.load(grad, a.grad, a.packed);
    mine.decode(first, a.first.codes, tables[0], halves);
    if constexpr (!kLion) mine.decode(second, a.second.codes, tables[1], halves);
    const float scale1 = a.first.scales[block], scale2 = kLion ? 0.0f : a.second.scales[block];
    float largest1 = 0.0f, largest2 = 0.0f;
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      const float g = grad[k] / a.grad_divisor, m = first[k] * scale1;
      if constexpr (kLion) {  // steps by an average with beta1 and keeps one with beta2
        second[k] = m * a.beta1 + a.rest1 * g;
        first[k] = m * a.beta2 + a.rest2 * g;
      } else {
        first[k] = m * a.beta1 + a.rest1 * g;
        second[k] = second[k] * scale2 * a.beta2 + a.rest2 * (g * g);
        largest2 = fmaxf(largest2, second[k]);
      }
      largest1 = fmaxf(largest1, fabsf(first[k]));
    }
    largest1 = warp_largest(largest1);
    if constexpr (!kLion) largest2 = warp_largest(largest2);
    if (a.edges != nullptr && (block == 0 || block + 1 == a.blocks)) {
      const double* edge = a.edges + (block == 0 ? 0 : 2);
      largest1 = static_cast<float>(edge[0]);
      largest2 = static_cast<float>(edge[1]);
    }
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      if constexpr (kLion) {
        const float sign = static_cast<float>(second[k] > 0.0f) - static_cast<float>(second[k] < 0.0f);
        param[k] = param[k] * a.weight_decay_factor - a.step_size * sign;
      } else {
        param[k] = param[k] * a.weight_decay_factor - a.step_size * first[k] / (sqrtf(second[k]) + a.eps);
      }
    }
    mine.store(a.param, param, a.packed);
    largest1 = fmaxf(largest1, a.first.least_scale);
    mine.encode(a.first.codes, first, a.first, tables[0], largest1);
    if (threadIdx.x % 32 == 0) a.first.scales[block] = largest1;
    if constexpr (kLion) continue;
    largest2 = fmaxf(largest2, a.second.least_scale);
    mine.encode(a.second.codes, second, a.second, tables[kLion ? 0 : 1], largest2);
    if (threadIdx.x % 32 == 0) a.second.scales[block] = largest2;
  }
}

void LaunchedKernels::blockwise(const fused::Blockwise& a) const {
  constexpr int kOfThreadBlock = kWarpsOfBlockwise * kBlocksOfWarp;
  const dim3 grid{static_cast<unsigned>((a.blocks + kOfThreadBlock - 1) / kOfThreadBlock), 1, 1};
  const bool halves = a.first.codes_count <= 16, lion = a.second.codes == nullptr;
  const auto run = [&](auto kernel) { launch(kernel, grid, kBlockwiseThreads, stream(), a); };
  if (lion) {
    run(cuda::blockwise<true, 8>);
  } else {
    halves ? run(cuda::blockwise<false, 4>) : run(cuda::blockwise<false, 8>);
  }
  check_launch();
}

}  // namespace fsdp::cuda
