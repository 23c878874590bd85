// Embedding, cross-entropy, and their gradients.
#include "lib/compute/cuda/kernels/device.cuh"
#include "lib/compute/cuda/kernels/launched_kernels.hpp"

namespace fsdp::cuda {

constexpr int kEmbedThreads = 128, kEmbedColumns = 8 * kEmbedThreads;
/// Threads of four times the columns sum the rows of an id, each group those of its tokens: one group after another
/// would wait for each row of a frequent id, of which a batch can have thousands.
constexpr int kEmbedGroups = 4, kEmbedGroupsThreads = kEmbedGroups * kEmbedThreads;

/// One thread block for each token and 1024 columns.
template <typename T>
__global__ void __launch_bounds__(kEmbedThreads) embed(fused::Embed a) {
  const long long row = blockIdx.x;
  const int column = static_cast<int>(blockIdx.y) * kEmbedColumns + static_cast<int>(threadIdx.x) * 8;
  const long long count = a.dim - column;
  if (count <= 0) return;
  float x[8];
  load_eight(x, static_cast<const T*>(a.token_VD) + static_cast<long long>(a.ids_N[row]) * a.dim + column, count,
             a.packed);
  if (a.position_PD != nullptr) {
    float position[8];
    const long long at = a.positions_N != nullptr ? a.positions_N[row] : a.first_position + row % a.row_length;
    load_eight(position, static_cast<const T*>(a.position_PD) + at * a.dim + column, count, a.packed);
#pragma unroll
    for (int k = 0; k < 8; ++k) x[k] += position[k];
  }
  store_eight(static_cast<T*>(a.out_ND) + row * a.dim + column, x, count, a.packed);
}

template <typename T>
__device__ __forceinline__ void add_row(float (&sum)[8], const fused::EmbedBackward& a, long long row, int column) {
  const long long count = a.dim - column;
  if (count <= 0) return;
  float grad[8];
  load_eight(grad, static_cast<const T*>(a.grad_ND) + row * a.dim + column, count, a.packed);
#pragma unroll
  for (int k = 0; k < 8; ++k) sum[k] += grad[k];
}

__device__ __forceinline__ void put_row(const fused::EmbedBackward& a, long long row, int column, float (&sum)[8]) {
  if (column < a.dim) put_eight(a.to, row * a.dim + column, sum, a.dim - column, a.packed);
}

/// Four consecutive ids; -1, which is no id, from `end` on. \param at  a multiple of 4
__device__ __forceinline__ uint4 load_ids(const std::int32_t* ids, long long at, long long end) {
  if (at + 4 <= end && reinterpret_cast<std::uintptr_t>(ids) % 16 == 0)
    return *reinterpret_cast<const uint4*>(ids + at);
  const auto one = [&](long long t) { return t < end ? static_cast<unsigned>(ids[t]) : 0xffffffffu; };
  return {one(at), one(at + 1), one(at + 2), one(at + 3)};
}

/// One thread block for each token and 1024 columns. The block of an id's first token sums all tokens of this id: each
/// group of threads those of 512 of 2048 tokens, in an order that the ids decide, then the groups' sums in order.
template <typename T>
__global__ void __launch_bounds__(kEmbedGroupsThreads) embed_backward_tokens(fused::EmbedBackward a) {
  constexpr int kWarps = kEmbedThreads / 32, kTokens = 4 * kEmbedGroupsThreads;
  __shared__ unsigned found[2][kEmbedGroups][kWarps][4];  // a thread may be one barrier ahead of another
  __shared__ float sums[kEmbedGroups][kEmbedColumns];
  const long long first = blockIdx.x;
  const int me = static_cast<int>(threadIdx.x) % kEmbedThreads, group = static_cast<int>(threadIdx.x) / kEmbedThreads;
  const int mine = static_cast<int>(threadIdx.x) * 4;
  const auto id = static_cast<unsigned>(a.ids_N[first]);
  for (long long from = 0; from < first; from += kTokens) {
    const auto ids = load_ids(a.ids_N, from + mine, first);
    if (__syncthreads_or(ids.x == id || ids.y == id || ids.z == id || ids.w == id) != 0) return;
  }
  const int column = static_cast<int>(blockIdx.y) * kEmbedColumns + me * 8;
  float sum[8] = {};
  int turn = 0;
  for (long long from = first / 4 * 4; from < a.rows; from += kTokens, turn ^= 1) {
    const auto ids = load_ids(a.ids_N, from + mine, a.rows);  // before `first` there are none of this id
    const unsigned votes[4]{__ballot_sync(0xffffffffu, ids.x == id), __ballot_sync(0xffffffffu, ids.y == id),
                            __ballot_sync(0xffffffffu, ids.z == id), __ballot_sync(0xffffffffu, ids.w == id)};
    if (me % 32 == 0) {
#pragma unroll
      for (int k = 0; k < 4; ++k) found[turn][group][me / 32][k] = votes[k];
    }
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) {
      const long long of_warp = from + (group * kEmbedThreads + 32 * w) * 4;
      for (int k = 0; k < 4; ++k) {
        for (unsigned left = found[turn][group][w][k]; left != 0; left &= left - 1)
          add_row<T>(sum, a, of_warp + 4 * (__ffs(static_cast<int>(left)) - 1) + k, column);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < 8; ++k) sums[group][me + k * kEmbedThreads] = sum[k];  // without conflicts of banks
  __syncthreads();
  if (group != 0) return;
#pragma unroll
  for (int other = 1; other < kEmbedGroups; ++other) {
#pragma unroll
    for (int k = 0; k < 8; ++k) sum[k] += sums[other][me + k * kEmbedThreads];
  }
  put_row(a, id, column, sum);
}

/// One thread block for each position and 1024 columns.
template <typename T>
__global__ void __launch_bounds__(kEmbedThreads) embed_backward_positions(fused::EmbedBackward a) {
  const long long position = blockIdx.x;
  const int column = static_cast<int>(blockIdx.y) * kEmbedColumns + static_cast<int>(threadIdx.x) * 8;
  float sum[8] = {};
  for (long long t = position; t < a.rows; t += a.row_length) add_row<T>(sum, a, t, column);
  put_row(a, position, column, sum);
}

// Cross-entropy and its gradient: two passes over a row of logits. Powers of two, because expf() and a division for
// each logit take longer than its transfer.

constexpr int kLossThreads = 512;  ///< upper limit
constexpr float kLog2E = 1.4426950408889634f;

/// Adds eight logits, of which the first `count` exist.
__device__ __forceinline__ void add_eight(SoftmaxSum& all, float (&x)[8], long long count) {
  if (count < 8) {
#pragma unroll
    for (int k = 0; k < 8; ++k) x[k] = k < count ? x[k] : -INFINITY;
  }
  float largest = x[0];
#pragma unroll
  for (int k = 1; k < 8; ++k) largest = fmaxf(largest, x[k]);
  if (largest > all.largest) {  // seldom, after the first few
    all.sum *= exp2f((all.largest - largest) * kLog2E);
    all.largest = largest;
  }
  const float shift = all.largest == -INFINITY ? 0.0f : all.largest;  // -inf - -inf would be NaN
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) sum += exp2f((x[k] - shift) * kLog2E);
  all.sum += sum;
}

/// One thread block for each row. \tparam kKeeps  the launch gives room for the row, which is then read once; otherwise
/// the second pass goes backwards and reads from the cache
template <typename T, bool kKeeps>
__global__ void __launch_bounds__(kLossThreads) cross_entropy(fused::CrossEntropy a) {
  __shared__ SoftmaxSum room[kMaxWarps];
  [[maybe_unused]] auto* kept = static_cast<Eight<T>*>(given_room());
  const long long row = blockIdx.x;
  auto* logits = static_cast<T*>(a.logits_NV) + row * a.width;
  const float weight = a.weights_N != nullptr ? a.weights_N[row] : 1.0f;
  const int target = weight == 0.0f ? -1 : a.targets_N[row];
  const int step = static_cast<int>(blockDim.x) * 8, mine_from = static_cast<int>(threadIdx.x) * 8;
  SoftmaxSum mine{-INFINITY, 0.0f};
  Eight<T> next;
  if (mine_from < a.vocab) load_eight(next, logits + mine_from, a.vocab - mine_from, a.packed);
  for (int at = mine_from; at < a.vocab; at += step) {
    const auto now = next;
    if (at + step < a.vocab) load_eight(next, logits + at + step, a.vocab - at - step, a.packed);
    if constexpr (kKeeps) kept[at / 8] = now;
    float x[8];
    widen_eight(x, now);
    add_eight(mine, x, a.vocab - at);
  }
  const auto all = block_join(mine, room);
  if (threadIdx.x == 0) a.losses_N[row] = target < 0 ? 0.0f : logf(all.sum) + all.largest - widen(logits[target]);
  if (!a.with_grad) return;
  __syncthreads();  // the target's logit has been read
  const float scale = (a.grad_scale_at != nullptr ? *a.grad_scale_at : a.grad_scale) * weight;
  const float share = scale / all.sum;
  for (int at = mine_from + a.width / step * step; at >= 0; at -= step) {
    if (at >= a.width) continue;
    float x[8] = {};
    // Ignored targets have zero gradient, even with logits that are not finite.
    if (target >= 0 && at < a.vocab) {
      if constexpr (kKeeps) {
        widen_eight(x, kept[at / 8]);
      } else {
        load_eight(x, logits + at, a.vocab - at, a.packed);
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) x[k] = exp2f((x[k] - all.largest) * kLog2E) * share;
      if (a.vocab - at < 8 || static_cast<unsigned>(target - at) < 8) {
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          if (at + k == target) x[k] -= scale;
          if (at + k >= a.vocab) x[k] = 0.0f;
        }
      }
    }
    store_eight(logits + at, x, a.width - at, a.packed);
  }
}

/// One thread block for each row: log(sum of e^x) - sum of e^x x / sum of e^x, x being logits less the largest one.
template <typename T>
__global__ void __launch_bounds__(kLossThreads) entropies(fused::Entropies a) {
  // Logits further below the largest one add nothing in float32; those of -inf would add NaN.
  constexpr float kLowest = -100.0f;
  __shared__ SoftmaxSum room[kMaxWarps];
  __shared__ float moments[kMaxWarps];
  const long long row = blockIdx.x;
  if (a.targets_N[row] < 0) {
    if (threadIdx.x == 0) a.entropies_N[row] = 0.0f;
    return;
  }
  const auto* logits = static_cast<const T*>(a.logits_NV) + row * a.width;
  const int step = static_cast<int>(blockDim.x) * 8, mine_from = static_cast<int>(threadIdx.x) * 8;
  SoftmaxSum mine{-INFINITY, 0.0f};
  float x[8];
  for (int at = mine_from; at < a.vocab; at += step) {
    load_eight(x, logits + at, a.vocab - at, a.packed);
    add_eight(mine, x, a.vocab - at);
  }
  const auto all = block_join(mine, room);
  float moment = 0;
  for (int at = mine_from; at < a.vocab; at += step) {
    load_eight(x, logits + at, a.vocab - at, a.packed);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float below = x[k] - all.largest;
      const float kept = below < kLowest ? kLowest : below;
      if (at + k < a.vocab) moment += exp2f(kept * kLog2E) * kept;
    }
  }
  moment = block_sum(moment, moments);
  if (threadIdx.x == 0) a.entropies_N[row] = logf(all.sum) - moment / all.sum;
}

/// One thread block: adds the weighted losses of rows, and the weights of rows that are not ignored.
__global__ void __launch_bounds__(kLossThreads) sum_losses(fused::CrossEntropy a) {
  __shared__ double room[2][kMaxWarps];
  double loss = 0, weights = 0;
  for (long long t = threadIdx.x; t < a.rows; t += blockDim.x) {
    if (a.targets_N[t] < 0) continue;
    const double weight = a.weights_N != nullptr ? a.weights_N[t] : 1.0;
    loss += weight * a.losses_N[t];
    weights += weight;
  }
  loss = block_sum(loss, room[0]);
  weights = block_sum(weights, room[1]);
  if (threadIdx.x != 0) return;
  a.sums[0] += loss;
  a.sums[1] += weights;
}

namespace {

dim3 rows_by_columns(std::int64_t rows, int dim) {
  return {static_cast<unsigned>(rows), static_cast<unsigned>((dim + kEmbedColumns - 1) / kEmbedColumns), 1};
}

/// Threads for as many items, in whole warps, at most kLossThreads.
unsigned threads_for(std::int64_t items) {
  return items >= kLossThreads ? kLossThreads : static_cast<unsigned>((items + 31) / 32 * 32);
}

}  // namespace

void LaunchedKernels::embed(const fused::Embed& a) const {
  with_type(a.type, [&](auto type) {
    launch(cuda::embed<decltype(type)>, rows_by_columns(a.rows, a.dim), kEmbedThreads, stream(), a);
  });
  check_launch();
}

void LaunchedKernels::embed_backward(const fused::EmbedBackward& a) const {
  with_type(a.type, [&](auto type) {
    using T = decltype(type);
    if (a.ids_N != nullptr) {
      launch(embed_backward_tokens<T>, rows_by_columns(a.rows, a.dim), kEmbedGroupsThreads, stream(), a);
    } else {
      const auto positions = a.rows < a.row_length ? a.rows : a.row_length;
      launch(embed_backward_positions<T>, rows_by_columns(positions, a.dim), kEmbedThreads, stream(), a);
    }
  });
  check_launch();
}

void LaunchedKernels::cross_entropy(const fused::CrossEntropy& a) const {
  with_type(a.type, [&](auto type) {
    using T = decltype(type);
    const dim3 grid{static_cast<unsigned>(a.rows), 1, 1};
    const auto eights = (a.vocab + 7) / 8, threads = (a.width + 7) / 8;
    const int bytes = eights * static_cast<int>(sizeof(Eight<T>));
    if (a.with_grad && bytes <= room_for_two())
      return launch_with_room(cuda::cross_entropy<T, true>, grid, threads_for(threads), bytes, stream(), a);
    launch(cuda::cross_entropy<T, false>, grid, threads_for(threads), stream(), a);
  });
  check_launch();
  launch(sum_losses, dim3{1, 1, 1}, threads_for(a.rows), stream(), a);
  check_launch();
}

void LaunchedKernels::entropies(const fused::Entropies& a) const {
  with_type(a.type, [&](auto type) {
    const dim3 grid{static_cast<unsigned>(a.rows), 1, 1};
    launch(cuda::entropies<decltype(type)>, grid, threads_for((a.vocab + 7) / 8), stream(), a);
  });
  check_launch();
}

}  // namespace fsdp::cuda
