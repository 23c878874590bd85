#pragma once
// Sums of exponentials over a thread block, whatever the numbers' size.
#include "lib/compute/cuda/kernels/device.cuh"

namespace fsdp::cuda {

/// Sum of exp(x - largest).
struct SoftmaxSum {
  float largest, sum;
};

__device__ __forceinline__ SoftmaxSum joined(SoftmaxSum a, SoftmaxSum b) {
  const float largest = fmaxf(a.largest, b.largest);
  if (largest == -INFINITY) return {largest, a.sum + b.sum};  // nothing yet: the differences would be NaN
  return {largest, a.sum * expf(a.largest - largest) + b.sum * expf(b.largest - largest)};
}

__device__ __forceinline__ SoftmaxSum block_join(SoftmaxSum mine, SoftmaxSum (&room)[kMaxWarps]) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) {
    const SoftmaxSum other{__shfl_xor_sync(0xffffffffu, mine.largest, lane),
                           __shfl_xor_sync(0xffffffffu, mine.sum, lane)};
    // Both lanes of a pair take the sums in one order.
    mine = (threadIdx.x & static_cast<unsigned>(lane)) != 0 ? joined(other, mine) : joined(mine, other);
  }
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = mine;
  __syncthreads();
  auto all = room[0];
  for (unsigned w = 1; w < blockDim.x / 32; ++w) all = joined(all, room[w]);
  return all;
}

}  // namespace fsdp::cuda
