#pragma once
// RMSNorm and LayerNorm of rows that one thread block's registers do not hold: each pass reads the row again, from the
// cache mostly, and sums over rows are kept in memory.
#include "lib/compute/cuda/kernels/norm.cuh"

namespace fsdp::cuda {

/// body(place) for a thread's share of a row, eight elements at a time.
template <typename Body>
__device__ __forceinline__ void for_row(int dim, const Body& body) {
  for (int i = 0;; ++i) {
    const Place p(i, dim);
    if (!p.inside()) return;
    body(p);
  }
}

/// One block for each row.
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
  for_row(a.dim, [&](const Place& p) {  // what this thread has read or stored itself
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

/// As norm_backward.
template <typename T, bool kLayerNorm>
__global__ void __launch_bounds__(kNormThreads) norm_backward_wide(fused::NormBackwardPass a) {
  __shared__ float room[2][2][kMaxWarps];  // a thread may be one barrier ahead of another
  constexpr int kSums = kLayerNorm ? 3 : 1;
  float* partial = a.partial + static_cast<long long>(blockIdx.x) * kSums * a.dim;
  int turn = 0;
  for (long long r = blockIdx.x; r < a.rows; r += gridDim.x, turn ^= 1) {
    const long long row = r * a.dim;
    const float rstd = a.rstd_N[r], mean = kLayerNorm ? a.mean_N[r] : 0.0f;
    const bool more = r != blockIdx.x;  // rows of this block have been summed before
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

}  // namespace fsdp::cuda
