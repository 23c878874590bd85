// Passes over rows: column passes (bias, activation, dropout, column sums), gated activations, and heads.
//
// A thread block of a column pass owns a strip of 256 columns; its eight warps take rows in turn.
#include "lib/compute/cuda/kernels/device.cuh"
#include "lib/compute/cuda/kernels/launched_kernels.hpp"

namespace fsdp::cuda {

constexpr int kStripColumns = 256, kStripWarps = 8, kStripThreads = 32 * kStripWarps;

__device__ __forceinline__ float gelu_inner(float x) { return 0.7978845608028654f * (x + 0.044715f * x * x * x); }

/// splitmix64's finalizer (Steele, Lea, Flood 2014), as in lib/compute/kernels/rowwise.hpp.
__device__ __forceinline__ unsigned long long mix64(unsigned long long z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

/// Eight elements of a row. A pass stores x back to x_ND and out to out_ND.
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
      x[k] = rounded<T>(x[k] + bias[k]);  // the backward reads the rounded sum
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

/// Rows that a thread reads before it computes: a pass with sums has few thread blocks, one row each of which does not
/// keep the memory busy.
template <typename T, fused::ColumnPassKind kKind>
constexpr int kRowsAtOnce = kKind == fused::ColumnPassKind::sum ? (sizeof(T) == 2 ? 4 : 2)
                            : kKind == fused::ColumnPassKind::bias_gelu_backward && sizeof(T) == 2 ? 2
                                                                                                   : 1;

template <typename T, fused::ColumnPassKind kKind>
__global__ void __launch_bounds__(kStripThreads, 3) column_pass(fused::ColumnPass a) {
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
    const long long first = static_cast<long long>(blockIdx.y) * kStripWarps + warp;
    for (long long rows = first; rows < a.rows; rows += kRowsAtOnce<T, kKind> * step) {
      Eight<T> xs[kRowsAtOnce<T, kKind>], ys[kRowsAtOnce<T, kKind>];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce<T, kKind>; ++i) {
        const long long row = rows + i * step, at = row * a.dim + column;
        if (row >= a.rows) break;
        load_eight(xs[i], static_cast<const T*>(a.x_ND) + at, count, a.packed);
        if (a.y_ND != nullptr) load_eight(ys[i], static_cast<const T*>(a.y_ND) + at, count, a.packed);
      }
#pragma unroll
      for (int i = 0; i < kRowsAtOnce<T, kKind>; ++i) {
        const long long row = rows + i * step, at = row * a.dim + column;
        if (row >= a.rows) break;
        EightOfRow e;
        widen_eight(e.x, xs[i]);
        if (a.y_ND != nullptr) widen_eight(e.y, ys[i]);
        pass_eight<T, kKind>(a, row, column, e, bias);
        // Without a bias GELU's input stays as it is.
        if (kKind != Kind::sum && (kKind != Kind::bias_gelu || a.bias_D != nullptr))
          store_eight(static_cast<T*>(a.x_ND) + at, e.x, count, a.packed);
        if (a.out_ND != nullptr) store_eight(static_cast<T*>(a.out_ND) + at, e.out, count, a.packed);
        if constexpr (kSums) {
#pragma unroll
          for (int k = 0; k < 8; ++k) sums[k] += e.x[k];
        }
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

/// Adds partial sums: 32 columns per thread block, whose eight warps take partial sums in turn. blockIdx.y is the
/// target.
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
  const GradTarget to =
      target == 0 ? a.to[0] : (target == 1 ? a.to[1] : a.to[2]);  // an index would move the array to local memory
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

// act(gate) * up, and its backward in place: grad becomes the recomputed output, gate and up become their gradients.

constexpr int kFlatThreads = 256;

/// Value and derivative of an activation.
struct Activated {
  float value, slope;
};

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <bool kGelu>
__device__ __forceinline__ Activated activate(float x) {
  if constexpr (kGelu) {
    // 0.5 x (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
    constexpr float kTwice = 1.5957691216057308f, kCubic = 0.044715f;
    const float s = sigmoid(kTwice * (x + kCubic * x * x * x));
    return {x * s, s + x * s * (1.0f - s) * kTwice * (1.0f + 3.0f * kCubic * x * x)};
  } else {
    const float s = sigmoid(x);
    return {x * s, s * (x * (1.0f - s) + 1.0f)};
  }
}

template <typename T, bool kBackward, bool kGelu>
__global__ void __launch_bounds__(kFlatThreads) gated(fused::Gated a) {
  const long long column = (static_cast<long long>(blockIdx.x) * kFlatThreads + threadIdx.x) * 8;
  const long long count = a.width - column;
  if (count <= 0) return;
  for (long long row = blockIdx.y; row < a.rows; row += gridDim.y) {
    T* gates = static_cast<T*>(a.gate_NF) + row * a.stride + column;
    T* ups = static_cast<T*>(a.up_NF) + row * a.stride + column;
    T* outs = static_cast<T*>(a.out_NF) + row * a.width + column;
    float gate[8], up[8], out[8] = {};
    load_eight(gate, gates, count, a.packed);
    load_eight(up, ups, count, a.packed);
    if constexpr (kBackward) load_eight(out, outs, count, a.packed);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const auto act = activate<kGelu>(gate[k]);
      const float incoming = out[k];
      out[k] = act.value * up[k];
      if constexpr (kBackward) {
        gate[k] = incoming * up[k] * act.slope;
        up[k] = incoming * act.value;
      }
    }
    store_eight(outs, out, count, a.packed);
    if constexpr (kBackward) {
      store_eight(gates, gate, count, a.packed);
      store_eight(ups, up, count, a.packed);
    }
  }
}

// Copies heads into columns of rows and rotates the first ones: the rotary embedding in place, and, in the backward of
// attention, packing of the gradients in the same pass.

constexpr int kHeadThreads = 128;

/// One thread block for each row. An item is eight elements of a head's lower half and their partners of the upper
/// half.
template <typename T>
__global__ void __launch_bounds__(kHeadThreads) move_heads(fused::Heads a) {
  const long long row = blockIdx.x;
  const long long in_batch = row % a.row_length, batch = row / a.row_length;
  const long long position = a.positions_N != nullptr ? a.positions_N[row] : a.first_position + in_batch;
  const int half = a.head_size / 2, items = (half + 7) / 8;
  int heads = 0;
  for (int part = 0; part < a.num_parts; ++part) heads += a.parts[part].heads;
  for (int item = static_cast<int>(threadIdx.x); item < heads * items; item += kHeadThreads) {
    const int head = item / items, at = item % items * 8;
    int part = 0, in_part = head;
    while (in_part >= a.parts[part].heads) in_part -= a.parts[part++].heads;
    const auto& source = a.parts[part];
    const auto* from = static_cast<const T*>(source.data) + batch * source.batch_stride + in_part * source.head_stride +
                       in_batch * source.row_stride + at;
    const long long count = half - at;
    float low[8], high[8];
    load_eight(low, from, count, a.packed);
    load_eight(high, from + half, count, a.packed);
    if (head < a.rotated_heads) {
      const long long angle = position * half + at;
      float cosine[8], sine[8];
      load_eight(cosine, a.cos_PH + angle, count, a.packed);
      load_eight(sine, a.sin_PH + angle, count, a.packed);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float s = a.inverse ? -sine[k] : sine[k];
        const float turned = low[k] * cosine[k] - high[k] * s;
        high[k] = high[k] * cosine[k] + low[k] * s;
        low[k] = turned;
      }
    }
    auto* to = static_cast<T*>(a.to_NC) + row * a.to_stride + static_cast<long long>(head) * a.head_size + at;
    store_eight(to, low, count, a.packed);
    store_eight(to + half, high, count, a.packed);
  }
}

void LaunchedKernels::column_sums(const fused::ColumnSums& a) const {
  const dim3 grid{static_cast<unsigned>((a.dim + 31) / 32), static_cast<unsigned>(a.targets), 1};
  launch(cuda::column_sums, grid, kStripThreads, stream(), a);
  check_launch();
}

void LaunchedKernels::column_pass(const fused::ColumnPass& a) const {
  using Kind = fused::ColumnPassKind;
  const auto strips = static_cast<unsigned>((a.dim + kStripColumns - 1) / kStripColumns);
  // The number of blocks of a sum follows from the size of `partial`; other passes may use any number.
  const auto blocks = a.partial != nullptr ? fused::column_blocks(a.rows) : (a.rows + 31) / 32;
  const dim3 grid{strips, static_cast<unsigned>(blocks > 65535 ? 65535 : blocks), 1};
  with_type(a.type, [&](auto type) {
    using T = decltype(type);
    const auto run = [&](auto kernel) { launch(kernel, grid, kStripThreads, stream(), a); };
    switch (a.kind) {
      case Kind::sum:
        return run(cuda::column_pass<T, Kind::sum>);
      case Kind::add_bias:
        return run(cuda::column_pass<T, Kind::add_bias>);
      case Kind::bias_gelu:
        return run(cuda::column_pass<T, Kind::bias_gelu>);
      case Kind::bias_gelu_backward:
        return run(cuda::column_pass<T, Kind::bias_gelu_backward>);
      case Kind::dropout:
        return run(cuda::column_pass<T, Kind::dropout>);
    }
  });
  check_launch();
}

void LaunchedKernels::dropout_keys(const fused::DropoutKeys& a) const {
  const dim3 grid{static_cast<unsigned>((a.rows + kStripThreads - 1) / kStripThreads), 1, 1};
  launch(cuda::dropout_keys, grid, kStripThreads, stream(), a);
  check_launch();
}

void LaunchedKernels::gated(const fused::Gated& a) const {
  constexpr std::int64_t kOfBlock = 8 * kFlatThreads;
  const dim3 grid{static_cast<unsigned>((a.width + kOfBlock - 1) / kOfBlock),
                  static_cast<unsigned>(a.rows > 65535 ? 65535 : a.rows), 1};
  with_type(a.type, [&](auto type) {
    using T = decltype(type);
    const auto kernel = a.gelu ? (a.backward ? cuda::gated<T, true, true> : cuda::gated<T, false, true>)
                               : (a.backward ? cuda::gated<T, true, false> : cuda::gated<T, false, false>);
    launch(kernel, grid, kFlatThreads, stream(), a);
  });
  check_launch();
}

void LaunchedKernels::heads(const fused::Heads& a) const {
  with_type(a.type, [&](auto type) {
    const dim3 grid{static_cast<unsigned>(a.rows), 1, 1};
    launch(move_heads<decltype(type)>, grid, kHeadThreads, stream(), a);
  });
  check_launch();
}

}  // namespace fsdp::cuda
