// Softmax of blocked attention with causal mask, window and score cap, and its backward, which recomputes the
// probabilities from the sums that the forward kept. Both use the same arithmetic, so the probabilities are bit-equal.
#include "lib/compute/cuda/kernels/device.cuh"
#include "lib/compute/cuda/kernels/launched_kernels.hpp"

namespace fsdp::cuda {

constexpr int kBandThreads = 256;  ///< upper limit

/// A row of a matrix, and its unmasked columns [first, last).
struct BandRow {
  long long matrix;
  int row, first, last;
};

__device__ __forceinline__ BandRow band_row(const fused::Band& a) {
  const long long matrix = blockIdx.x / static_cast<unsigned>(a.rows);
  const int row = static_cast<int>(blockIdx.x % static_cast<unsigned>(a.rows));
  const int own = a.first_column + row / a.group;
  const long long first = a.window > 0 ? own + 1 - a.window : 0;
  return {matrix, row, first > 0 ? static_cast<int>(first) : 0, own + 1};
}

/// The score of a product of query and key. \param slope  receives the derivative of the cap
__device__ __forceinline__ float band_score(const fused::Band& a, float product, float& slope) {
  const float scaled = product * a.scale;
  slope = 1.0f;
  if (a.softcap <= 0.0f) return scaled;
  const float bent = tanhf(scaled / a.softcap);
  slope = 1.0f - bent * bent;
  return a.softcap * bent;
}

/// One thread block for each row.
template <typename T>
__global__ void __launch_bounds__(kBandThreads) band_softmax(fused::Band a) {
  __shared__ SoftmaxSum room[kMaxWarps];
  const auto r = band_row(a);
  const auto begin = static_cast<long long>(blockIdx.x) * a.stride;
  const float* scores = a.scores + begin;
  auto* probs = static_cast<T*>(a.probs) + begin;
  const int step = static_cast<int>(blockDim.x) * 8, mine_first = static_cast<int>(threadIdx.x) * 8;
  SoftmaxSum mine{-INFINITY, 0.0f};
  for (int at = r.first / 8 * 8 + mine_first; at < r.last; at += step) {
    float x[8], slope;
    load_eight(x, scores + at, a.keys - at, a.packed);
    SoftmaxSum of_eight{-INFINITY, 0.0f};
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const bool seen = at + k >= r.first && at + k < r.last;
      x[k] = seen ? band_score(a, x[k], slope) : -INFINITY;
      of_eight.largest = fmaxf(of_eight.largest, x[k]);
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) of_eight.sum += x[k] != -INFINITY ? expf(x[k] - of_eight.largest) : 0.0f;
    mine = joined(mine, of_eight);
  }
  const auto all = block_join(mine, room);  // all scores have been read: the probabilities may take their place
  const float log_sum = all.largest + logf(all.sum);
  if (threadIdx.x == 0 && a.log_sums != nullptr)
    a.log_sums[(r.matrix * a.length + a.first_query) * a.group + r.row] = log_sum;
  for (int at = mine_first; at < a.keys; at += step) {
    float x[8] = {}, slope;
    if (at < r.last && at + 8 > r.first) {
      load_eight(x, scores + at, a.keys - at, a.packed);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const bool seen = at + k >= r.first && at + k < r.last;
        x[k] = seen ? expf(band_score(a, x[k], slope) - log_sum) : 0.0f;
      }
    }
    store_eight(probs + at, x, a.keys - at, a.packed);
  }
}

/// One thread block for each row.
template <typename T>
__global__ void __launch_bounds__(kBandThreads) band_softmax_backward(const __grid_constant__ fused::Band a) {
  __shared__ float room[kMaxWarps];
  const auto r = band_row(a);
  const auto begin = static_cast<long long>(blockIdx.x) * a.stride;
  const int step = static_cast<int>(blockDim.x) * 8, mine_first = static_cast<int>(threadIdx.x) * 8;
  // sum(p * dp), the term that the softmax backward subtracts, equals sum(out * grad_out).
  const long long sequence = r.matrix / a.kv_heads, head = r.matrix % a.kv_heads * a.group + r.row % a.group;
  const long long token = sequence * a.length + a.first_query + r.row / a.group;
  const long long of_head = (token * a.kv_heads * a.group + head) * a.head_size;
  const auto *out = static_cast<const T*>(a.out_ND) + of_head,
             *grad_out = static_cast<const T*>(a.grad_out_ND) + of_head;
  float share = 0;
  for (int at = mine_first; at < a.head_size; at += step) {
    float x[8], g[8];
    load_eight(x, out + at, a.head_size - at, a.packed);
    load_eight(g, grad_out + at, a.head_size - at, a.packed);
#pragma unroll
    for (int k = 0; k < 8; ++k) share += x[k] * g[k];
  }
  share = block_sum(share, room);
  const float log_sum = a.log_sums[(r.matrix * a.length + a.first_query) * a.group + r.row];
  const float* scores = a.scores + begin;
  auto *probs = static_cast<T*>(a.probs) + begin, *grads = static_cast<T*>(a.grads) + begin;
  for (int at = mine_first; at < a.keys; at += step) {
    float x[8] = {}, g[8] = {};
    if (at < r.last && at + 8 > r.first) {
      load_eight(x, scores + at, a.keys - at, a.packed);
      load_eight(g, grads + at, a.keys - at, a.packed);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const bool seen = at + k >= r.first && at + k < r.last;
        float slope;
        const float score = band_score(a, x[k], slope);
        x[k] = seen ? expf(score - log_sum) : 0.0f;
        g[k] = seen ? x[k] * (g[k] - share) * slope * a.scale : 0.0f;
      }
    }
    store_eight(probs + at, x, a.keys - at, a.packed);
    store_eight(grads + at, g, a.keys - at, a.packed);
  }
}

namespace {

dim3 band_rows(const fused::Band& a) { return {static_cast<unsigned>(a.matrices * a.rows), 1, 1}; }

/// Threads for a row, one for each vector of eight elements, rounded up to whole warps.
unsigned band_threads(const fused::Band& a) {
  const int eights = (a.keys + 7) / 8;
  return eights >= kBandThreads ? kBandThreads : static_cast<unsigned>((eights + 31) / 32 * 32);
}

}  // namespace

void LaunchedKernels::band_softmax(const fused::Band& a) const {
  with_type(a.type,
            [&](auto type) { launch(cuda::band_softmax<decltype(type)>, band_rows(a), band_threads(a), stream(), a); });
  check_launch();
}

void LaunchedKernels::band_softmax_backward(const fused::Band& a) const {
  with_type(a.type, [&](auto type) {
    launch(cuda::band_softmax_backward<decltype(type)>, band_rows(a), band_threads(a), stream(), a);
  });
  check_launch();
}

}  // namespace fsdp::cuda
