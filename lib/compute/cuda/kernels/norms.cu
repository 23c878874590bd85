// RMSNorm and LayerNorm of a sum, forward and backward. A row stays in the registers of one thread block between
// passes; the kernels for wider rows read it again.
#include "lib/compute/cuda/kernels/device.cuh"
#include "lib/compute/cuda/kernels/launched_kernels.hpp"

namespace fsdp::cuda {

constexpr int kNormThreads = 512;  ///< upper limit
/// Upper limit where a block takes several rows at a time, so that two blocks fit into a multiprocessor's registers:
/// LayerNorm keeps three sums per column.
template <bool kLayerNorm>
constexpr int kTeamsThreads = kLayerNorm ? 288 : 384;

/// Position of this thread's i-th vector of eight elements of a row, which `threads` threads share.
struct Place {
  int at;
  long long count;
  __device__ __forceinline__ Place(int i, int dim, unsigned me, unsigned threads)
      : at((static_cast<int>(me) + i * static_cast<int>(threads)) * 8), count(dim - at) {}
  __device__ __forceinline__ Place(int i, int dim) : Place(i, dim, threadIdx.x, blockDim.x) {}
  __device__ __forceinline__ bool inside() const { return count > 0; }
};

/// Computes x + (y + bias), rounded and stored. The norm uses the rounded sum, since the backward reads that.
template <typename T>
__device__ __forceinline__ void load_sum(float (&x)[8], const fused::Norm& a, long long row, const Place& p) {
  load_eight(x, static_cast<const T*>(a.x_ND) + row + p.at, p.count, a.packed);
  if (a.y_ND == nullptr) return;
  float y[8];
  load_eight(y, static_cast<const T*>(a.y_ND) + row + p.at, p.count, a.packed);
  if (a.y_bias_D != nullptr) {
    float bias[8];
    load_eight(bias, static_cast<const T*>(a.y_bias_D) + p.at, p.count, a.packed);
#pragma unroll
    for (int k = 0; k < 8; ++k) y[k] += bias[k];
  }
#pragma unroll
  for (int k = 0; k < 8; ++k) x[k] = rounded<T>(x[k] + y[k]);
  store_eight(static_cast<T*>(a.sum_ND) + row + p.at, x, p.count, a.packed);
}

/// One thread block for each row.
template <typename T, int kVectors, bool kLayerNorm>
__global__ void __launch_bounds__(kNormThreads) norm_forward(fused::Norm a) {
  __shared__ float room[2][kMaxWarps];
  const long long row = static_cast<long long>(blockIdx.x) * a.dim;
  float x[kVectors][8];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const Place p(i, a.dim);
    if (!p.inside()) continue;
    load_sum<T>(x[i], a, row, p);
#pragma unroll
    for (int k = 0; k < 8; ++k) sum += x[i][k];
  }
  const float mean = kLayerNorm ? block_sum(sum, room[0]) / static_cast<float>(a.dim) : 0.0f;
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const Place p(i, a.dim);
    if (!p.inside()) continue;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float centred = k < p.count ? x[i][k] - mean : 0.0f;
      squares = __fmaf_rn(centred, centred, squares);
    }
  }
  const float rstd = __frsqrt_rn(block_sum(squares, room[1]) / static_cast<float>(a.dim) + a.eps);
  if (threadIdx.x == 0) {
    a.rstd_N[blockIdx.x] = rstd;
    if (kLayerNorm) a.mean_N[blockIdx.x] = mean;
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const Place p(i, a.dim);
    if (!p.inside()) continue;
    float gamma[8], beta[8] = {};
    load_eight(gamma, static_cast<const T*>(a.gamma_D) + p.at, p.count, a.packed);
    if (kLayerNorm) load_eight(beta, static_cast<const T*>(a.beta_D) + p.at, p.count, a.packed);
#pragma unroll
    for (int k = 0; k < 8; ++k) x[i][k] = (x[i][k] - mean) * rstd * (a.offset + gamma[k]) + beta[k];
    store_eight(static_cast<T*>(a.out_ND) + row + p.at, x[i], p.count, a.packed);
  }
}

/// Column sums of one thread over its rows.
template <int kVectors, bool kLayerNorm>
struct NormSums {
  static constexpr int kSums = kLayerNorm ? 3 : 1;
  float gamma[kVectors][8] = {};
  float beta[kLayerNorm ? kVectors : 1][8] = {};
  float dx[kLayerNorm ? kVectors : 1][8] = {};

  __device__ __forceinline__ void store(const fused::NormBackwardPass& a, int i, const Place& p) const {
    auto* to = a.partial + static_cast<long long>(blockIdx.x) * kSums * a.dim + p.at;
    store_eight(to, gamma[i], 8, true);
    if (!kLayerNorm) return;
    store_eight(to + a.dim, beta[i], 8, true);
    store_eight(to + 2 * a.dim, dx[i], 8, true);
  }
};

/// Adds the sums of all teams to those of the first one, in the order of the teams.
template <bool kLayerNorm>
__device__ __forceinline__ void add_teams(NormSums<1, kLayerNorm>& sums, const Team& team) {
  constexpr int kSums = NormSums<1, kLayerNorm>::kSums;
  __shared__ float others[kSums][8]
                         [kTeamsThreads<kLayerNorm> / 2];  // a thread's elements are apart: no conflicts of banks
  for (unsigned other = 1; other < team.count; ++other) {
    __syncthreads();
    if (team.index == other) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        others[0][k][team.me] = sums.gamma[0][k];
        if constexpr (kLayerNorm) {
          others[1][k][team.me] = sums.beta[0][k];
          others[2][k][team.me] = sums.dx[0][k];
        }
      }
    }
    __syncthreads();
    if (team.index != 0) continue;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      sums.gamma[0][k] += others[0][k][team.me];
      if constexpr (kLayerNorm) {
        sums.beta[0][k] += others[1][k][team.me];
        sums.dx[0][k] += others[2][k][team.me];
      }
    }
  }
}

/// A thread's elements of a row, read before its sums and kept as they are in memory: in half of the registers.
template <typename T, int kVectors, bool kLayerNorm>
struct BackwardRow {
  Eight<T> x[kVectors], grad[kVectors], residual[kVectors];
  float mean = 0, rstd = 0;

  /// \param r  may be past the last row, of which nothing is read
  __device__ __forceinline__ void load(const fused::NormBackwardPass& a, int r, const Team& team) {
    if (r >= a.rows) return;
    rstd = a.rstd_N[r];
    if (kLayerNorm) mean = a.mean_N[r];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const Place p(i, a.dim, team.me, team.threads);
      if (!p.inside()) continue;
      const long long at = static_cast<long long>(r) * a.dim + p.at;
      load_eight(x[i], static_cast<const T*>(a.x_ND) + at, 8, true);
      load_eight(grad[i], static_cast<const T*>(a.grad_ND) + at, 8, true);
      if (a.residual_ND != nullptr) load_eight(residual[i], static_cast<const T*>(a.residual_ND) + at, 8, true);
    }
  }
};

/// Eight elements of a row: n, grad and s of norm_backward().
struct NormFactors {
  float normal[8], grad[8], scaled[8];

  template <typename T, int kVectors, bool kLayerNorm>
  __device__ __forceinline__ NormFactors(const BackwardRow<T, kVectors, kLayerNorm>& row, int i,
                                         const float (&gamma)[8]) {
    widen_eight(normal, row.x[i]);
    widen_eight(grad, row.grad[i]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      normal[k] = (kLayerNorm ? normal[k] - row.mean : normal[k]) * row.rstd;
      scaled[k] = grad[k] * gamma[k];
    }
  }
};

/// The factors of the normalised elements.
template <typename T>
__device__ __forceinline__ void load_gamma(float (&gamma)[8], const fused::NormBackwardPass& a, const Place& p) {
  load_eight(gamma, static_cast<const T*>(a.gamma_D) + p.at, 8, true);
#pragma unroll
  for (int k = 0; k < 8; ++k) gamma[k] += a.offset;
}

/// Blocks of norm_backward() that a multiprocessor's registers must have room for: two where a thread keeps few sums.
template <typename T, int kVectors, bool kLayerNorm, bool kTeams>
constexpr int kNormBackwardBlocks = sizeof(T) == 2 && kVectors == 1 && (kTeams || !kLayerNorm) ? 2 : 1;
/// True if registers have room for a second row.
template <typename T, int kVectors, bool kLayerNorm>
constexpr bool kReadsAhead = kVectors == 1 || (sizeof(T) == 2 && !kLayerNorm);

/// With n the normalised x and s = gamma grad: dx = (s - n mean(s n) - mean(s)) rstd + residual, the last mean for
/// LayerNorm alone. Each team of a block takes a row at a time; a.packed is required. If registers have room, the
/// team's next row travels while it computes this one: loads that wait for a barrier leave the memory idle.
template <typename T, int kVectors, bool kLayerNorm, bool kTeams>
__global__ void __launch_bounds__(kTeams ? kTeamsThreads<kLayerNorm> : kNormThreads,
                                  kNormBackwardBlocks<T, kVectors, kLayerNorm, kTeams>)
    norm_backward(const __grid_constant__ fused::NormBackwardPass a) {
  __shared__ float room[2][2][kMaxWarps];  // a thread may be one barrier ahead of another
  const auto team = kTeams ? Team(static_cast<unsigned>((a.dim + 7) / 8)) : Team();
  NormSums<kVectors, kLayerNorm> sums;
  int turn = 0;
  const int step = static_cast<int>(gridDim.x * team.count), begin = static_cast<int>(blockIdx.x * team.count);
  constexpr bool kAhead = kReadsAhead<T, kVectors, kLayerNorm>;
  BackwardRow<T, kVectors, kLayerNorm> next;
  if (kAhead) next.load(a, begin + static_cast<int>(team.index), team);
  for (int first = begin; first < a.rows; first += step, turn ^= 1) {
    const int r = first + static_cast<int>(team.index);
    const long long row = static_cast<long long>(r) * a.dim;
    const int dim = r < a.rows ? a.dim : 0;  // a team without a row waits at the barriers alone
    if (!kAhead) next.load(a, r, team);
    auto now = next;
    if (kAhead) next.load(a, r + step, team);
    float sum_scaled = 0, sum_both = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const Place p(i, dim, team.me, team.threads);
      if (!p.inside()) continue;
      float gamma[8];
      load_gamma<T>(gamma, a, p);
      const NormFactors f(now, i, gamma);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        sums.gamma[i][k] += f.grad[k] * f.normal[k];
        if (kLayerNorm) sums.beta[i][k] += f.grad[k];
        sum_scaled += f.scaled[k];
        sum_both = __fmaf_rn(f.scaled[k], f.normal[k], sum_both);
      }
      if (a.again_ND != nullptr) {
        float beta[8] = {}, again[8];
        if (kLayerNorm) load_eight(beta, static_cast<const T*>(a.beta_D) + p.at, 8, true);
#pragma unroll
        for (int k = 0; k < 8; ++k) again[k] = f.normal[k] * gamma[k] + beta[k];
        store_eight(static_cast<T*>(a.again_ND) + row + p.at, again, 8, true);
      }
    }
    const auto columns = static_cast<float>(a.dim);
    TwoSums means{};
    if constexpr (kLayerNorm) {
      means = team_sums({sum_both, sum_scaled}, room[turn], team);
    } else {
      means.first = team_sum(sum_both, room[turn][0], team);
    }
    const float mean_both = means.first / columns, mean_scaled = means.second / columns;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const Place p(i, dim, team.me, team.threads);
      if (!p.inside()) continue;
      float gamma[8], dx[8], residual[8] = {};
      load_gamma<T>(gamma, a, p);
      forget(now.x[i]);
      forget(now.grad[i]);
      const NormFactors f(now, i, gamma);
      if (a.residual_ND != nullptr) widen_eight(residual, now.residual[i]);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        dx[k] = (f.scaled[k] - f.normal[k] * mean_both - mean_scaled) * now.rstd + residual[k];
        if (kLayerNorm) sums.dx[i][k] += dx[k];
      }
      store_eight(static_cast<T*>(a.dx_ND) + row + p.at, dx, 8, true);
    }
  }
  if constexpr (kTeams) add_teams(sums, team);
  if (team.index != 0) return;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const Place p(i, a.dim, team.me, team.threads);
    if (p.inside()) sums.store(a, i, p);
  }
}

// Rows that do not fit into the registers of one thread block: each pass reads the row again, mostly from the cache,
// and column sums are in global memory.

/// Calls body(place) for each of this thread's vectors of eight elements of a row.
template <typename Body>
__device__ __forceinline__ void for_row(int dim, const Body& body) {
  for (int i = 0;; ++i) {
    const Place p(i, dim);
    if (!p.inside()) return;
    body(p);
  }
}

/// One thread block for each row.
template <typename T, bool kLayerNorm>
__global__ void __launch_bounds__(kNormThreads) norm_forward_wide(fused::Norm a) {
  __shared__ float room[2][kMaxWarps];
  const long long row = static_cast<long long>(blockIdx.x) * a.dim;
  const auto* input = static_cast<const T*>(a.y_ND != nullptr ? a.sum_ND : a.x_ND) + row;
  float sum = 0;
  for_row(a.dim, [&](const Place& p) {
    float x[8];
    load_sum<T>(x, a, row, p);
#pragma unroll
    for (int k = 0; k < 8; ++k) sum += x[k];
  });
  const float mean = kLayerNorm ? block_sum(sum, room[0]) / static_cast<float>(a.dim) : 0.0f;
  float squares = 0;
  for_row(a.dim, [&](const Place& p) {  // reads only elements that this thread has read or stored itself
    float x[8];
    load_eight(x, input + p.at, p.count, a.packed);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float centred = k < p.count ? x[k] - mean : 0.0f;
      squares = __fmaf_rn(centred, centred, squares);
    }
  });
  const float rstd = __frsqrt_rn(block_sum(squares, room[1]) / static_cast<float>(a.dim) + a.eps);
  if (threadIdx.x == 0) {
    a.rstd_N[blockIdx.x] = rstd;
    if (kLayerNorm) a.mean_N[blockIdx.x] = mean;
  }
  for_row(a.dim, [&](const Place& p) {
    float x[8], gamma[8], beta[8] = {};
    load_eight(x, input + p.at, p.count, a.packed);
    load_eight(gamma, static_cast<const T*>(a.gamma_D) + p.at, p.count, a.packed);
    if (kLayerNorm) load_eight(beta, static_cast<const T*>(a.beta_D) + p.at, p.count, a.packed);
#pragma unroll
    for (int k = 0; k < 8; ++k) x[k] = (x[k] - mean) * rstd * (a.offset + gamma[k]) + beta[k];
    store_eight(static_cast<T*>(a.out_ND) + row + p.at, x, p.count, a.packed);
  });
}

/// norm_backward() for wide rows.
template <typename T, bool kLayerNorm>
__global__ void __launch_bounds__(kNormThreads) norm_backward_wide(fused::NormBackwardPass a) {
  __shared__ float room[2][2][kMaxWarps];  // a thread may be one barrier ahead of another
  constexpr int kSums = kLayerNorm ? 3 : 1;
  float* partial = a.partial + static_cast<long long>(blockIdx.x) * kSums * a.dim;
  int turn = 0;
  for (long long r = blockIdx.x; r < a.rows; r += gridDim.x, turn ^= 1) {
    const long long row = r * a.dim;
    const float rstd = a.rstd_N[r], mean = kLayerNorm ? a.mean_N[r] : 0.0f;
    const bool more = r != blockIdx.x;  // partial holds sums of earlier rows of this block
    float sum_scaled = 0, sum_both = 0;
    for_row(a.dim, [&](const Place& p) {
      float normal[8], grad[8], gamma[8], beta[8] = {};
      load_eight(normal, static_cast<const T*>(a.x_ND) + row + p.at, p.count, a.packed);
      load_eight(grad, static_cast<const T*>(a.grad_ND) + row + p.at, p.count, a.packed);
      load_eight(gamma, static_cast<const T*>(a.gamma_D) + p.at, p.count, a.packed);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        normal[k] = (normal[k] - mean) * rstd;  // past the end gradients are zero
        const float scaled = grad[k] * (a.offset + gamma[k]);
        sum_scaled += scaled;
        sum_both = __fmaf_rn(scaled, normal[k], sum_both);
      }
      if (a.again_ND != nullptr) {
        float again[8];
        if (kLayerNorm) load_eight(beta, static_cast<const T*>(a.beta_D) + p.at, p.count, a.packed);
#pragma unroll
        for (int k = 0; k < 8; ++k) again[k] = normal[k] * (a.offset + gamma[k]) + beta[k];
        store_eight(static_cast<T*>(a.again_ND) + row + p.at, again, p.count, a.packed);
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) normal[k] *= grad[k];
      put_eight(partial + p.at, normal, p.count, a.packed, more);
      if (kLayerNorm) put_eight(partial + a.dim + p.at, grad, p.count, a.packed, more);
    });
    const auto dim = static_cast<float>(a.dim);
    const float mean_both = block_sum(sum_both, room[turn][0]) / dim;
    const float mean_scaled = kLayerNorm ? block_sum(sum_scaled, room[turn][1]) / dim : 0.0f;
    for_row(a.dim, [&](const Place& p) {
      float normal[8], grad[8], gamma[8], dx[8] = {};
      load_eight(normal, static_cast<const T*>(a.x_ND) + row + p.at, p.count, a.packed);
      load_eight(grad, static_cast<const T*>(a.grad_ND) + row + p.at, p.count, a.packed);
      load_eight(gamma, static_cast<const T*>(a.gamma_D) + p.at, p.count, a.packed);
      if (a.residual_ND != nullptr)
        load_eight(dx, static_cast<const T*>(a.residual_ND) + row + p.at, p.count, a.packed);
#pragma unroll
      for (int k = 0; k < 8; ++k)
        dx[k] += (grad[k] * (a.offset + gamma[k]) - (normal[k] - mean) * rstd * mean_both - mean_scaled) * rstd;
      store_eight(static_cast<T*>(a.dx_ND) + row + p.at, dx, p.count, a.packed);
      if (kLayerNorm) put_eight(partial + 2 * a.dim + p.at, dx, p.count, a.packed, more);
    });
  }
}

namespace {

/// Fewest threads, in whole warps, that hold a row with `vectors` vectors of eight elements each.
unsigned threads_for(int dim, int vectors) {
  const int threads = (dim + 8 * vectors - 1) / (8 * vectors);
  return static_cast<unsigned>((threads + 31) / 32 * 32);
}

/// Calls body(Vectors<n>) with the fewest vectors of eight for each of at most kNormThreads threads.
template <int kVectors>
struct Vectors {
  static constexpr int count = kVectors;
};
template <typename Body>
void with_vectors(int dim, const Body& body) {
  dim <= 8 * kNormThreads ? body(Vectors<1>{}) : body(Vectors<2>{});
}

/// True if registers hold a row.
bool is_narrow(int dim) { return dim <= 16 * kNormThreads; }

}  // namespace

void LaunchedKernels::norm(const fused::Norm& a) const {
  const dim3 grid{static_cast<unsigned>(a.rows), 1, 1};
  const bool layer_norm = a.mean_N != nullptr;
  with_type(a.type, [&](auto type) {
    using T = decltype(type);
    if (!is_narrow(a.dim))
      return launch(layer_norm ? norm_forward_wide<T, true> : norm_forward_wide<T, false>, grid, kNormThreads, stream(),
                    a);
    with_vectors(a.dim, [&](auto vectors) {
      constexpr int kVectors = decltype(vectors)::count;
      launch(layer_norm ? norm_forward<T, kVectors, true> : norm_forward<T, kVectors, false>, grid,
             threads_for(a.dim, kVectors), stream(), a);
    });
  });
  check_launch();
}

void LaunchedKernels::norm_backward(const fused::NormBackwardPass& a) const {
  const dim3 grid{static_cast<unsigned>(fused::norm_blocks(a.rows)), 1, 1};
  const bool layer_norm = a.mean_N != nullptr;
  with_type(a.type, [&](auto type) {
    using T = decltype(type);
    if (!is_narrow(a.dim) || !a.packed)
      return launch(layer_norm ? norm_backward_wide<T, true> : norm_backward_wide<T, false>, grid, kNormThreads,
                    stream(), a);
    with_vectors(a.dim, [&](auto vectors) {
      constexpr int kVectors = decltype(vectors)::count;
      const auto threads = threads_for(a.dim, kVectors);
      const auto teams = (layer_norm ? kTeamsThreads<true> : kTeamsThreads<false>) / threads;
      if (kVectors == 1 && teams > 1)
        return launch(layer_norm ? cuda::norm_backward<T, 1, true, true> : cuda::norm_backward<T, 1, false, true>, grid,
                      threads * teams, stream(), a);
      if (!layer_norm) return launch(cuda::norm_backward<T, kVectors, false, false>, grid, threads, stream(), a);
      if constexpr (kVectors == 1 || sizeof(T) == 2) {
        launch(cuda::norm_backward<T, kVectors, true, false>, grid, threads, stream(), a);
      } else {  // three sums of 16 columns and three rows in float32 are more than a thread's registers
        launch(norm_backward_wide<T, true>, grid, kNormThreads, stream(), a);
      }
    });
  });
  check_launch();
}

}  // namespace fsdp::cuda
