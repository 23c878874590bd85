#pragma once
// Passes over strips of columns: what depends on a column, and sums over rows. Eight warps of a block take rows in
// turn, each 256 columns of one.
#include "lib/compute/cuda/kernels/device.cuh"

namespace fsdp::cuda {

constexpr int kStripColumns = 256, kStripWarps = 8, kStripThreads = 32 * kStripWarps;

__device__ __forceinline__ float gelu_inner(float x) { return 0.7978845608028654f * (x + 0.044715f * x * x * x); }

/// splitmix64's finaliser (Steele, Lea, Flood 2014), as lib/compute/kernels/dropout.hpp has it.
__device__ __forceinline__ unsigned long long mix64(unsigned long long z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

/// Of one row. What a pass leaves in x is stored there, what it puts in out beside it.
struct EightOfRow {
  float x[8], y[8] = {}, out[8] = {};
};

template <typename T, fused::ColumnPassKind kKind>
__device__ __forceinline__ void pass_eight(const fused::ColumnPass& a, long long row, int column, EightOfRow& e,
                                           const float (&bias)[8]) {
  auto& [x, y, out] = e;
  using Kind = fused::ColumnPassKind;
  [[maybe_unused]] const float keep_scale = 1.0f / (1.0f - a.probability);
  [[maybe_unused]] const auto threshold =
      static_cast<unsigned long long>(static_cast<double>(a.probability) * 16777216.0);
  [[maybe_unused]] const auto key =
      kKind == Kind::dropout ? static_cast<unsigned long long>(a.keys_N[row]) + static_cast<unsigned>(column) : 0ull;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    if constexpr (kKind == Kind::add_bias) x[k] += y[k] + bias[k];
    if constexpr (kKind == Kind::dropout) {
      const bool drop = (mix64(key + static_cast<unsigned>(k)) >> 40) < threshold;
      x[k] = drop ? 0.0f : x[k] * keep_scale;
    }
    if constexpr (kKind == Kind::bias_gelu) {
      x[k] = rounded<T>(x[k] + bias[k]);  // the backward sees what is kept
      out[k] = 0.5f * x[k] * (1.0f + tanhf(gelu_inner(x[k])));
    }
    if constexpr (kKind == Kind::bias_gelu_backward) {
      const float t = tanhf(gelu_inner(y[k]));
      out[k] = 0.5f * y[k] * (1.0f + t);
      const float inner_slope = 0.7978845608028654f * (1.0f + 3.0f * 0.044715f * y[k] * y[k]);
      x[k] *= 0.5f * (1.0f + t) + 0.5f * y[k] * (1.0f - t * t) * inner_slope;
    }
  }
}

template <typename T, fused::ColumnPassKind kKind>
__global__ void __launch_bounds__(kStripThreads) column_pass(fused::ColumnPass a) {
  using Kind = fused::ColumnPassKind;
  constexpr bool kSums = kKind == Kind::sum || kKind == Kind::bias_gelu_backward;
  __shared__ float room[kSums ? kStripWarps : 1][kStripColumns];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int column = static_cast<int>(blockIdx.x) * kStripColumns + lane * 8;
  const long long count = a.dim - column;
  float sums[8] = {};
  if (count > 0) {
    float bias[8] = {};
    if (a.bias_D != nullptr) load_eight(bias, static_cast<const T*>(a.bias_D) + column, count, a.packed);
    const long long step = static_cast<long long>(gridDim.y) * kStripWarps;
    for (long long row = static_cast<long long>(blockIdx.y) * kStripWarps + warp; row < a.rows; row += step) {
      const long long at = row * a.dim + column;
      EightOfRow e;
      load_eight(e.x, static_cast<const T*>(a.x_ND) + at, count, a.packed);
      if (a.y_ND != nullptr) load_eight(e.y, static_cast<const T*>(a.y_ND) + at, count, a.packed);
      pass_eight<T, kKind>(a, row, column, e, bias);
      if constexpr (kKind != Kind::sum) store_eight(static_cast<T*>(a.x_ND) + at, e.x, count, a.packed);
      if (a.out_ND != nullptr) store_eight(static_cast<T*>(a.out_ND) + at, e.out, count, a.packed);
      if constexpr (kSums) {
#pragma unroll
        for (int k = 0; k < 8; ++k) sums[k] += e.x[k];
      }
    }
  }
  if constexpr (kSums) {
#pragma unroll
    for (int k = 0; k < 8; ++k) room[warp][lane * 8 + k] = sums[k];
    __syncthreads();
    const int mine = static_cast<int>(threadIdx.x);
    const int place = static_cast<int>(blockIdx.x) * kStripColumns + mine;
    if (place >= a.dim) return;
    float sum = 0;
    for (const auto& of_warp : room) sum += of_warp[mine];
    a.partial[static_cast<long long>(blockIdx.y) * a.dim + place] = sum;
  }
}

/// Eight rows of 32 threads take blocks' sums in turn; each row of the grid is one target.
__global__ void __launch_bounds__(kStripThreads) column_sums(fused::ColumnSums a) {
  __shared__ float room[kStripWarps][32];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int column = static_cast<int>(blockIdx.x) * 32 + lane;
  const int target = static_cast<int>(blockIdx.y);
  float sum = 0;
  if (column < a.dim) {
    for (long long b = warp; b < a.blocks; b += kStripWarps)
      sum += a.partial[(b * a.targets + target) * a.dim + column];
  }
  room[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= a.dim) return;
  const GradTarget to = target == 0 ? a.to[0] : (target == 1 ? a.to[1] : a.to[2]);  // an index would put all in memory
  if (to.data == nullptr) return;
  float all = 0;
  for (const auto& of_warp : room) all += of_warp[lane];
  put_one(to, column, all);
}

__global__ void __launch_bounds__(kStripThreads) dropout_keys(fused::DropoutKeys a) {
  const long long row = static_cast<long long>(blockIdx.x) * kStripThreads + threadIdx.x;
  if (row >= a.rows) return;
  const auto first = static_cast<std::uint64_t>(a.samples[row / a.rows_per_sample]) ^ a.place;
  const auto step = static_cast<std::uint64_t>(row % a.rows_per_sample) * a.step;
  a.keys[row] = static_cast<std::int64_t>(first + step);
}

}  // namespace fsdp::cuda
