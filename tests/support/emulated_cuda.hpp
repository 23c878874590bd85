#pragma once
// Emulates CUDA's device language for a host compiler, so that a test runs a kernel's source on a CPU.
//
// A thread block is one OS thread. Its CUDA threads are fibers that run one after another and yield at __syncthreads()
// and at warp shuffles. Between two such points they run in an order that the test chooses: a kernel whose result
// depends on that order lacks a barrier. A barrier that some threads never reach raises an error instead of hanging.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/support/emulated_threads.hpp"

// NOLINTBEGIN: names of CUDA
#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static thread_local  // fibers of one block share their OS thread

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct __nv_bfloat16 {
  std::uint16_t bits;
};
struct __half {
  std::uint16_t bits;
};

/// A stream is the order in which threads run.
using cudaStream_t = const emulated::Order*;

#define threadIdx (emulated::current->thread)
#define blockIdx (emulated::current->index)
#define blockDim (emulated::current->block)
#define gridDim (emulated::current->grid)

inline void __syncthreads() { emulated::barrier(); }

namespace emulated {
/// Shared memory that a launch gives to a thread block: half of an H100's, for two blocks.
constexpr std::size_t kRoomBytes = 112 << 10;
inline void* room() {
  alignas(16) static thread_local char bytes[kRoomBytes];
  return bytes;
}
}  // namespace emulated

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask) {
  const unsigned lane = emulated::current->now % 32;
  const auto got = emulated::exchange(mask, value)[lane ^ static_cast<unsigned>(lane_mask)];
  std::memcpy(&value, &got, sizeof value);
  return value;
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const auto* given = emulated::exchange(mask, predicate != 0 ? 1u : 0u);
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) votes |= static_cast<unsigned>(given[lane]) << lane;
  return votes;
}

inline int __syncthreads_or(int predicate) { return emulated::barrier_with_votes(predicate != 0) > 0 ? 1 : 0; }

inline unsigned __float_as_uint(float x) { return c10::detail::fp32_to_bits(x); }
inline float __uint_as_float(unsigned x) { return c10::detail::fp32_from_bits(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline float __bfloat162float(__nv_bfloat16 x) { return c10::detail::f32_from_bits(x.bits); }
inline float __half2float(__half x) { return c10::detail::fp16_ieee_to_fp32_value(x.bits); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __frsqrt_rn(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {c10::detail::round_to_nearest_even(x)}; }
inline __half __float2half_rn(float x) { return {c10::detail::fp16_ieee_from_fp32_value(x)}; }
// Not inlined, so that no compiler contracts them to fused multiply-adds: host and device give the same bits.
[[gnu::noinline]] inline float __fmul_rn(float a, float b) { return a * b; }
[[gnu::noinline]] inline float __fadd_rn(float a, float b) { return a + b; }
// NOLINTEND
