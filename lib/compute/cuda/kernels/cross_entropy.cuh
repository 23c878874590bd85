#pragma once
// Loss and gradient of rows of logits: two passes over a row, which the second finds in the cache.
#include "lib/compute/cuda/kernels/softmax.cuh"

namespace fsdp::cuda {

constexpr int kLossThreads = 512;  ///< at most

/// One block for each row.
template <typename T>
__global__ void __launch_bounds__(kLossThreads) cross_entropy(fused::CrossEntropy a) {
  __shared__ SoftmaxSum room[kMaxWarps];
  const long long row = blockIdx.x;
  auto* logits = static_cast<T*>(a.logits_NV) + row * a.width;
  const int target = a.targets_N[row];
  const int step = static_cast<int>(blockDim.x) * 8;
  SoftmaxSum mine{-INFINITY, 0.0f};
  for (int at = static_cast<int>(threadIdx.x) * 8; at < a.vocab; at += step) {
    float x[8];
    load_eight(x, logits + at, a.vocab - at, a.packed);
    float largest = x[0];
#pragma unroll
    for (int k = 1; k < 8; ++k) largest = k < a.vocab - at ? fmaxf(largest, x[k]) : largest;
    SoftmaxSum of_eight{largest, 0.0f};
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const bool counts = k < a.vocab - at && x[k] != -INFINITY;  // of that the difference may be NaN
      of_eight.sum += counts ? expf(x[k] - largest) : 0.0f;
    }
    mine = joined(mine, of_eight);
  }
  const auto all = block_join(mine, room);
  if (threadIdx.x == 0) a.losses_N[row] = target < 0 ? 0.0f : logf(all.sum) + all.largest - widen(logits[target]);
  if (!a.with_grad) return;
  __syncthreads();  // the target's logit has been read
  const float of_all = a.grad_scale_at != nullptr ? *a.grad_scale_at : a.grad_scale;
  const float scale = target < 0 ? 0.0f : of_all;
  for (int at = static_cast<int>(threadIdx.x) * 8; at < a.width; at += step) {
    float x[8];
    load_eight(x, logits + at, a.width - at, a.packed);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float share = at + k < a.vocab ? expf(x[k] - all.largest) / all.sum : 0.0f;
      // Of a target that does not count nothing remains, whatever the logits are.
      x[k] = target < 0 ? 0.0f : (share - (at + k == target ? 1.0f : 0.0f)) * scale;
    }
    store_eight(logits + at, x, a.width - at, a.packed);
  }
}

/// One block: rows' losses and how many count.
__global__ void __launch_bounds__(kLossThreads) sum_losses(fused::CrossEntropy a) {
  __shared__ double room[2][kMaxWarps];
  double loss = 0, count = 0;
  for (long long t = threadIdx.x; t < a.rows; t += blockDim.x) {
    if (a.targets_N[t] < 0) continue;
    loss += a.losses_N[t];
    count += 1;
  }
  loss = block_sum(loss, room[0]);
  count = block_sum(count, room[1]);
  if (threadIdx.x != 0) return;
  a.sums[0] += loss;
  a.sums[1] += count;
}

}  // namespace fsdp::cuda
