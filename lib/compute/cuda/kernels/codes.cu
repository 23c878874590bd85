// Casts to fp8 (lib/compute/ops/products/fp8.hpp) and dequantization of NF4, bit for bit as plain operators and the CPU kernels.
#include <algorithm>

#include "lib/compute/cuda/kernels/device.cuh"
#include "lib/compute/cuda/kernels/launched_kernels.hpp"
#include "lib/compute/kernels/eight_bit_code.hpp"
#include "lib/compute/kernels/nf4_code.hpp"

namespace fsdp::cuda {

constexpr int kFp8Threads = 256, kFp8Tile = 64;

template <bool kE5m2>
struct Fp8Code {
  static constexpr int kFraction = kE5m2 ? 2 : 3, kBias = kE5m2 ? 15 : 7;
  static constexpr float kMax = kE5m2 ? fused::kE5m2Max : fused::kE4m3Max;
};

/// Rounds to nearest even; larger values saturate.
template <bool kE5m2>
__device__ __forceinline__ unsigned to_fp8(float x) {
  using Code = Fp8Code<kE5m2>;
  constexpr int kShift = 23 - Code::kFraction;
  const unsigned bits = __float_as_uint(x), sign = (bits >> 24) & 0x80u;
  unsigned a = bits & 0x7fffffffu;
  if (a > 0x7f800000u) return 0x7fu;
  const unsigned most = __float_as_uint(Code::kMax);
  if (a > most) a = most;
  // Subnormal numbers are evenly spaced, as floats are after 2^23 of these spacings have been added.
  constexpr unsigned kFirstNormal = (128u - Code::kBias) << 23;
  constexpr unsigned kRounder = (151u - Code::kBias - Code::kFraction) << 23;
  if (a < kFirstNormal)
    return sign | (__float_as_uint(__fadd_rn(__uint_as_float(a), __uint_as_float(kRounder))) - kRounder);
  a += (1u << (kShift - 1)) - 1u + ((a >> kShift) & 1u);
  return sign | ((a >> kShift) - ((127u - Code::kBias) << Code::kFraction));
}

/// Converts two values, by one instruction where the GPU has it; `low` goes to the low byte.
template <bool kE5m2>
__device__ __forceinline__ unsigned to_two_fp8(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned short two;
  if constexpr (kE5m2) {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
  }
  return two;
#else
  return to_fp8<kE5m2>(low) | (to_fp8<kE5m2>(high) << 8);
#endif
}

/// Maximum of absolute values, compared as bits: NaNs are larger than all numbers.
__device__ __forceinline__ unsigned warp_max(unsigned x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) {
    const unsigned other = __shfl_xor_sync(0xffffffffu, x, lane);
    x = other > x ? other : x;
  }
  return x;
}

/// Maximum over the thread block, on every thread. One barrier.
__device__ __forceinline__ unsigned block_max(unsigned x, unsigned (&room)[kFp8Threads / 32]) {
  x = warp_max(x);
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
  __syncthreads();
  for (const unsigned other : room) x = other > x ? other : x;
  return x;
}

/// Writes the largest absolute value of the rows of each thread block; warps take rows in turn.
template <typename T>
__global__ void __launch_bounds__(kFp8Threads) fp8_largest(const __grid_constant__ fused::Fp8 a) {
  __shared__ unsigned room[kFp8Threads / 32];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  unsigned largest = 0;
  const long long step = static_cast<long long>(gridDim.x) * (kFp8Threads / 32);
  for (long long row = static_cast<long long>(blockIdx.x) * (kFp8Threads / 32) + warp; row < a.rows; row += step) {
    const auto* from = static_cast<const T*>(a.x_RC) + row * a.stride;
    for (int column = lane * 8; column < a.columns; column += 256) {
      float values[8];
      load_eight(values, from + column, 8, a.packed);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const unsigned bits = __float_as_uint(values[k]) & 0x7fffffffu;
        largest = bits > largest ? bits : largest;
      }
    }
  }
  largest = block_max(largest, room);
  if (threadIdx.x == 0) a.largest[blockIdx.x] = __uint_as_float(largest);
}

/// The scale from all blocks' largest values, computed in float64 and rounded once as in torchao; equal on all threads.
template <bool kE5m2>
__device__ __forceinline__ float fp8_scale(const fused::Fp8& a) {
  __shared__ unsigned room[kFp8Threads / 32];
  __shared__ float scale;
  unsigned largest = 0;
  for (int b = static_cast<int>(threadIdx.x); b < a.blocks; b += kFp8Threads) {
    const unsigned bits = __float_as_uint(a.largest[b]);
    largest = bits > largest ? bits : largest;
  }
  largest = block_max(largest, room);
  if (threadIdx.x == 0) {
    constexpr double kLeast = fused::kFp8LeastLargest;
    const double value = __uint_as_float(largest);
    scale = static_cast<float>(static_cast<double>(Fp8Code<kE5m2>::kMax) / (value < kLeast ? kLeast : value));
  }
  __syncthreads();
  return scale;
}

/// A tile of 64 x 64 codes by rows, four codes in a word.
struct Fp8Words {
  unsigned row[kFp8Tile][kFp8Tile / 4 + 1];  // odd pitch, so that rows start in different banks
};

/// Writes a tile transposed; each thread writes sixteen rows of a column.
/// \param columns_left, rows_left  size of the matrix from the tile on
__device__ __forceinline__ void store_columns(const Fp8Words& tile, std::uint8_t* to_CR, long long pitch,
                                              long long columns_left, long long rows_left) {
  const int thread = static_cast<int>(threadIdx.x), column = thread / 4, row = thread % 4 * 16;
  if (column >= columns_left || row >= rows_left) return;
  unsigned words[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    words[w] = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k)
      words[w] |= ((tile.row[row + 4 * w + k][column / 4] >> (column % 4 * 8)) & 0xffu) << (8 * k);
  }
  *reinterpret_cast<uint4*>(to_CR + column * pitch + row) = uint4{words[0], words[1], words[2], words[3]};
}

/// Rows are written directly, the transpose goes through shared memory.
template <typename T, bool kE5m2>
__global__ void __launch_bounds__(kFp8Threads) fp8_cast(const __grid_constant__ fused::Fp8 a) {
  __shared__ Fp8Words tile;
  const float scale = fp8_scale<kE5m2>(a);
  const int thread = static_cast<int>(threadIdx.x);
  if (blockIdx.x == 0 && blockIdx.y == 0 && thread == 0) *a.inverse = 1.0f / scale;
  const long long first_column = static_cast<long long>(blockIdx.x) * kFp8Tile;
  for (long long first_row = static_cast<long long>(blockIdx.y) * kFp8Tile; first_row < a.padded_rows;
       first_row += static_cast<long long>(gridDim.y) * kFp8Tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = thread + half * kFp8Threads, row_of_tile = at / 8, eight = at % 8;
      const long long row = first_row + row_of_tile, column = first_column + eight * 8;
      const bool is_there = row < a.rows && column < a.columns;
      float values[8] = {};
      if (is_there) load_eight(values, static_cast<const T*>(a.x_RC) + row * a.stride + column, 8, a.packed);
      unsigned two[4];
#pragma unroll
      for (int k = 0; k < 4; ++k)
        two[k] = to_two_fp8<kE5m2>(__fmul_rn(values[2 * k], scale), __fmul_rn(values[2 * k + 1], scale));
      const uint2 all{two[0] | (two[1] << 16), two[2] | (two[3] << 16)};
      if (a.rows_RC != nullptr && is_there) *reinterpret_cast<uint2*>(a.rows_RC + row * a.columns + column) = all;
      // Padding rows are zero for any scale.
      tile.row[row_of_tile][eight * 2] = row < a.rows ? all.x : 0u;
      tile.row[row_of_tile][eight * 2 + 1] = row < a.rows ? all.y : 0u;
    }
    if (a.columns_CR == nullptr) continue;
    __syncthreads();
    store_columns(tile, a.columns_CR + first_column * a.padded_rows + first_row, a.padded_rows,
                  a.columns - first_column, a.padded_rows - first_row);
    __syncthreads();
  }
}

/// Transposes codes.
__global__ void __launch_bounds__(kFp8Threads) fp8_transpose(const __grid_constant__ fused::Fp8Transpose a) {
  __shared__ Fp8Words tile;
  const int thread = static_cast<int>(threadIdx.x), row_of_tile = thread / 4, sixteen = thread % 4;
  const long long first_column = static_cast<long long>(blockIdx.x) * kFp8Tile;
  for (long long first_row = static_cast<long long>(blockIdx.y) * kFp8Tile; first_row < a.rows;
       first_row += static_cast<long long>(gridDim.y) * kFp8Tile) {
    const long long row = first_row + row_of_tile, column = first_column + sixteen * 16;
    if (row < a.rows && column < a.columns) {
      const uint4 all = *reinterpret_cast<const uint4*>(a.rows_RC + row * a.columns + column);
      auto* to = tile.row[row_of_tile] + sixteen * 4;
      to[0] = all.x, to[1] = all.y, to[2] = all.z, to[3] = all.w;
    }
    __syncthreads();
    store_columns(tile, a.columns_CR + first_column * a.rows + first_row, a.rows, a.columns - first_column,
                  a.rows - first_row);
    __syncthreads();
  }
}

constexpr int kNf4Threads = 256, kNf4OfThread = 8;

struct Nf4Tables {
  float values[16];        ///< kernels::kNf4Code
  float scale_codes[256];  ///< kernels::signed_code()
};

/// Tables are launch parameters, so that they are in constant memory.
struct Nf4Pass : fused::Nf4 {
  Nf4Tables tables;
};

__device__ __forceinline__ float nf4_scale(const Nf4Pass& a, long long block) {
  if (a.absmax != nullptr) return a.absmax[block];
  return __fadd_rn(__fmul_rn(a.tables.scale_codes[a.codes[block]], a.nested[block / 256]), *a.offset);
}

template <typename T>
__global__ void __launch_bounds__(kNf4Threads) dequantize_nf4(const __grid_constant__ Nf4Pass a) {
  // Shared memory, since constant memory serializes reads of different addresses in a warp.
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

namespace {

Nf4Tables make_nf4_tables() {
  Nf4Tables tables{};
  std::copy(kernels::kNf4Code.begin(), kernels::kNf4Code.end(), tables.values);
  const auto& code = kernels::signed_code().values;
  std::copy(code.begin(), code.end(), tables.scale_codes);
  return tables;
}

dim3 fp8_tiles(std::int64_t columns, std::int64_t rows) {
  const auto tiles = [](std::int64_t n) { return (n + kFp8Tile - 1) / kFp8Tile; };
  return {static_cast<unsigned>(tiles(columns)), static_cast<unsigned>(std::min<std::int64_t>(tiles(rows), 65535)), 1};
}

}  // namespace

void LaunchedKernels::nf4(const fused::Nf4& a) const {
  static const Nf4Tables tables = make_nf4_tables();
  const Nf4Pass pass{a, tables};
  constexpr std::int64_t kOfBlock = kNf4Threads * kNf4OfThread;
  const dim3 grid{static_cast<unsigned>((a.elements + kOfBlock - 1) / kOfBlock), 1, 1};
  with_type(a.type, [&](auto type) { launch(dequantize_nf4<decltype(type)>, grid, kNf4Threads, stream(), pass); });
  check_launch();
}

void LaunchedKernels::fp8_largest(const fused::Fp8& a) const {
  const dim3 grid{static_cast<unsigned>(a.blocks), 1, 1};
  with_type(a.type, [&](auto type) { launch(cuda::fp8_largest<decltype(type)>, grid, kFp8Threads, stream(), a); });
  check_launch();
}

void LaunchedKernels::fp8_cast(const fused::Fp8& a) const {
  const dim3 grid = fp8_tiles(a.columns, a.padded_rows);
  with_type(a.type, [&](auto type) {
    using T = decltype(type);
    launch(a.e5m2 ? cuda::fp8_cast<T, true> : cuda::fp8_cast<T, false>, grid, kFp8Threads, stream(), a);
  });
  check_launch();
}

void LaunchedKernels::fp8_transpose(const fused::Fp8Transpose& a) const {
  const dim3 grid = fp8_tiles(a.columns, a.rows);
  launch(cuda::fp8_transpose, grid, kFp8Threads, stream(), a);
  check_launch();
}

}  // namespace fsdp::cuda
