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

/// Loads eight elements.
/// \param count   elements that exist; the others become zero
/// \param packed  `from` is at a multiple of 16 bytes
template <typename T>
__device__ __forceinline__ void load_eight(Eight<T>& all, const T* from, long long count, bool packed) {
  if (packed && count >= 8) {
    auto* to = reinterpret_cast<uint4*>(&all);
#pragma unroll
    for (unsigned k = 0; k < sizeof(all) / sizeof(uint4); ++k) to[k] = reinterpret_cast<const uint4*>(from)[k];
    return;
  }
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    if (k < count) {
      all.items[k] = from[k];
    } else {
      narrow(all.items[k], 0.0f);
    }
  }
}

template <typename T>
__device__ __forceinline__ void widen_eight(float (&values)[8], const Eight<T>& all) {
#pragma unroll
  for (int k = 0; k < 8; ++k) values[k] = widen(all.items[k]);
}

/// Keeps the compiler from holding what it has computed from these elements: it computes that again, in fewer
/// registers.
template <typename T>
__device__ __forceinline__ void forget([[maybe_unused]] Eight<T>& all) {
#ifdef __CUDACC__
  auto* words = reinterpret_cast<unsigned*>(&all);
#pragma unroll
  for (unsigned k = 0; k < sizeof(all) / sizeof(unsigned); ++k) asm volatile("" : "+r"(words[k]));
#endif
}

/// Loads eight elements as float32; parameters as above.
template <typename T>
__device__ __forceinline__ void load_eight(float (&values)[8], const T* from, long long count, bool packed) {
  Eight<T> all;
  load_eight(all, from, count, packed);
  widen_eight(values, all);
}

/// Loads eight elements of a type that is known at run time.
__device__ __forceinline__ void load_eight(float (&values)[8], const void* data, Type type, long long at,
                                           long long count, bool packed) {
  if (type == Type::f32) load_eight(values, static_cast<const float*>(data) + at, count, packed);
  if (type == Type::bf16) load_eight(values, static_cast<const __nv_bfloat16*>(data) + at, count, packed);
  if (type == Type::f16) load_eight(values, static_cast<const __half*>(data) + at, count, packed);
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
  if (to.type == Type::f16) put_eight(static_cast<__half*>(to.data) + at, values, count, packed, to.add);
}

template <typename T>
__device__ __forceinline__ void put_one(T* to, float value, bool add) {
  narrow(*to, add ? value + widen(*to) : value);
}

__device__ __forceinline__ void put_one(const GradTarget& to, long long at, float value) {
  if (to.type == Type::f32) put_one(static_cast<float*>(to.data) + at, value, to.add);
  if (to.type == Type::bf16) put_one(static_cast<__nv_bfloat16*>(to.data) + at, value, to.add);
  if (to.type == Type::f16) put_one(static_cast<__half*>(to.data) + at, value, to.add);
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

/// Two sums by one barrier; otherwise as above.
struct TwoSums {
  float first, second;
};
__device__ __forceinline__ TwoSums team_sums(TwoSums x, float (&room)[2][kMaxWarps], const Team& team) {
  x.first = warp_sum(x.first);
  x.second = warp_sum(x.second);
  if (threadIdx.x % 32 == 0) {
    room[0][threadIdx.x / 32] = x.first;
    room[1][threadIdx.x / 32] = x.second;
  }
  __syncthreads();
  TwoSums sums{};
  for (unsigned w = 0; w < team.threads / 32; ++w) {
    sums.first += room[0][team.warp + w];
    sums.second += room[1][team.warp + w];
  }
  return sums;
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
  if (type == Type::f16) body(__half{});
}

#ifdef __CUDACC__
template <typename Pass>
void launch(void (*kernel)(Pass), dim3 grid, unsigned threads, cudaStream_t stream, const Pass& pass) {
  kernel<<<grid, threads, 0, stream>>>(pass);
}

/// Shared memory that the launch gives to a thread block; starts at a multiple of 16 bytes.
__device__ __forceinline__ void* given_room() {
  extern __shared__ uint4 room[];
  return room;
}

/// Bytes that a launch may give to a thread block of the current device, where two are to fit into a multiprocessor.
inline int room_for_two() {
  int device = 0, bytes = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
    return 0;
  return bytes / 2 - 1536;  // of which CUDA takes 1 KiB of each block, and kernels some for their sums
}

/// Launches with `bytes` of shared memory for given_room().
template <typename Pass>
void launch_with_room(void (*kernel)(Pass), dim3 grid, unsigned threads, int bytes, cudaStream_t stream,
                      const Pass& pass) {
  // More than 48 KiB must be asked for; the error of a refusal comes from the launch.
  static_cast<void>(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  static_cast<void>(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
  kernel<<<grid, threads, bytes, stream>>>(pass);
}
#else
template <typename Pass>
void launch(void (*kernel)(Pass), dim3 grid, unsigned threads, cudaStream_t stream, const Pass& pass) {
  emulated::launch(grid, {threads}, *stream, kernel, pass);
}
inline void* given_room() { return emulated::room(); }
inline int room_for_two() { return static_cast<int>(emulated::kRoomBytes); }
template <typename Pass>
void launch_with_room(void (*kernel)(Pass), dim3 grid, unsigned threads, int, cudaStream_t stream, const Pass& pass) {
  launch(kernel, grid, threads, stream, pass);
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
