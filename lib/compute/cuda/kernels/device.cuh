#pragma once
// Included by every kernel: CUDA's headers, or for tests on the CPU a header that emulates them (tests/support);
// vectors of eight elements, in accesses of 128 bits where they are aligned; sums over a thread block.
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include FSDP_EMULATED_CUDA
#endif

#include <cstdint>

#include "lib/compute/ops/fused_kernels.hpp"

namespace fsdp::cuda {

using fused::GradTarget;
using fused::Type;

/// Rounds float32 to the element type, to nearest even.
__device__ __forceinline__ void narrow(float& to, float x) { to = x; }
__device__ __forceinline__ void narrow(__nv_bfloat16& to, float x) { to = __float2bfloat16_rn(x); }
__device__ __forceinline__ void narrow(__half& to, float x) { to = __float2half_rn(x); }
__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }

template <typename T>
struct alignas(16) Eight {
  T items[8];
};

/// Loads eight elements as float32.
/// \param count   elements that exist; the others become zero
/// \param packed  `from` is at a multiple of 16 bytes
template <typename T>
__device__ __forceinline__ void load_eight(float (&values)[8], const T* from, long long count, bool packed) {
  Eight<T> all;
  if (packed && count >= 8) {
    auto* to = reinterpret_cast<uint4*>(&all);
#pragma unroll
    for (unsigned k = 0; k < sizeof(all) / sizeof(uint4); ++k) to[k] = reinterpret_cast<const uint4*>(from)[k];
#pragma unroll
    for (int k = 0; k < 8; ++k) values[k] = widen(all.items[k]);
    return;
  }
#pragma unroll
  for (int k = 0; k < 8; ++k) values[k] = k < count ? widen(from[k]) : 0.0f;
}

/// Stores eight elements; parameters as in load_eight().
template <typename T>
__device__ __forceinline__ void store_eight(T* to, const float (&values)[8], long long count, bool packed) {
  Eight<T> all;
#pragma unroll
  for (int k = 0; k < 8; ++k) narrow(all.items[k], values[k]);
  if (packed && count >= 8) {
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

/// \return x rounded to T, as a later load returns it
template <typename T>
__device__ __forceinline__ float rounded(float x) {
  T narrowed;
  narrow(narrowed, x);
  return widen(narrowed);
}

template <typename T>
__device__ __forceinline__ void put_eight(T* to, float (&values)[8], long long count, bool packed, bool add) {
  if (add) {
    float before[8];
    load_eight(before, to, count, packed);
#pragma unroll
    for (int k = 0; k < 8; ++k) values[k] += before[k];
  }
  store_eight(to, values, count, packed);
}

/// Sets or adds eight elements; overwrites `values`. \param at  index of the first element
__device__ __forceinline__ void put_eight(const GradTarget& to, long long at, float (&values)[8], long long count,
                                          bool packed) {
  if (to.type == Type::f32) put_eight(static_cast<float*>(to.data) + at, values, count, packed, to.add);
  if (to.type == Type::bf16) put_eight(static_cast<__nv_bfloat16*>(to.data) + at, values, count, packed, to.add);
  if (to.type == Type::fp16) put_eight(static_cast<__half*>(to.data) + at, values, count, packed, to.add);
}

template <typename T>
__device__ __forceinline__ void put_one(T* to, float value, bool add) {
  narrow(*to, add ? value + widen(*to) : value);
}

__device__ __forceinline__ void put_one(const GradTarget& to, long long at, float value) {
  if (to.type == Type::f32) put_one(static_cast<float*>(to.data) + at, value, to.add);
  if (to.type == Type::bf16) put_one(static_cast<__nv_bfloat16*>(to.data) + at, value, to.add);
  if (to.type == Type::fp16) put_one(static_cast<__half*>(to.data) + at, value, to.add);
}

// --- sums over threads, in an order that does not depend on their timing

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
  return x;
}
__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
  return x;
}

constexpr int kMaxWarps = 16;

/// A thread block in parts of equally many warps.
struct Team {
  unsigned threads, count;   ///< of each team; of teams
  unsigned index, me, warp;  ///< of this thread's team; of this thread in the team; the team's first warp
  /// The whole block.
  __device__ __forceinline__ Team() : threads(blockDim.x), count(1), index(0), me(threadIdx.x), warp(0) {}
  /// \param needed  threads of a team, which are rounded up to whole warps
  __device__ __forceinline__ explicit Team(unsigned needed)
      : threads((needed + 31) / 32 * 32),
        count(blockDim.x / threads),
        index(threadIdx.x / threads),
        me(threadIdx.x % threads),
        warp(index * (threads / 32)) {}
};

/// The same on every thread of a team. One barrier of the block. \param room  its next use must have another barrier in
/// between
template <typename X>
__device__ __forceinline__ X team_sum(X x, X (&room)[kMaxWarps], const Team& team) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
  __syncthreads();
  X sum = 0;
  for (unsigned w = 0; w < team.threads / 32; ++w) sum += room[team.warp + w];
  return sum;
}

/// The same on every thread. One barrier. \param room  its next use must have another barrier in between
template <typename X>
__device__ __forceinline__ X block_sum(X x, X (&room)[kMaxWarps]) {
  return team_sum(x, room, Team());
}

// --- launches, by host code

template <typename Body>
void with_type(Type type, const Body& body) {
  if (type == Type::f32) body(float{});
  if (type == Type::bf16) body(__nv_bfloat16{});
  if (type == Type::fp16) body(__half{});
}

#ifdef __CUDACC__
template <typename Pass>
void launch(void (*kernel)(Pass), dim3 grid, unsigned threads, cudaStream_t stream, const Pass& pass) {
  kernel<<<grid, threads, 0, stream>>>(pass);
}
#else
template <typename Pass>
void launch(void (*kernel)(Pass), dim3 grid, unsigned threads, cudaStream_t stream, const Pass& pass) {
  emulated::launch(grid, {threads}, *stream, kernel, pass);
}
#endif

// Sums of exponentials over a thread block without overflow.

/// `sum` is the sum of exp(x - largest).
struct SoftmaxSum {
  float largest, sum;
};

__device__ __forceinline__ SoftmaxSum joined(SoftmaxSum a, SoftmaxSum b) {
  const float largest = fmaxf(a.largest, b.largest);
  if (largest == -INFINITY) return {largest, a.sum + b.sum};  // both are empty; the differences would be NaN
  return {largest, a.sum * expf(a.largest - largest) + b.sum * expf(b.largest - largest)};
}

__device__ __forceinline__ SoftmaxSum block_join(SoftmaxSum mine, SoftmaxSum (&room)[kMaxWarps]) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) {
    const SoftmaxSum other{__shfl_xor_sync(0xffffffffu, mine.largest, lane),
                           __shfl_xor_sync(0xffffffffu, mine.sum, lane)};
    // Both lanes of a pair add in the same order, so that all threads get the same bits.
    mine = (threadIdx.x & static_cast<unsigned>(lane)) != 0 ? joined(other, mine) : joined(mine, other);
  }
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = mine;
  __syncthreads();
  auto all = room[0];
  for (unsigned w = 1; w < blockDim.x / 32; ++w) all = joined(all, room[w]);
  return all;
}

}  // namespace fsdp::cuda
