#pragma once
// Rows of tables by token, and their gradients.
#include "lib/compute/cuda/kernels/device.cuh"

namespace fsdp::cuda {

constexpr int kEmbedThreads = 128, kEmbedColumns = 8 * kEmbedThreads;

/// One block for each token and 1024 columns.
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

/// One block for each token and 1024 columns; that of an id's first token takes all of them.
template <typename T>
__global__ void __launch_bounds__(kEmbedThreads) embed_backward_tokens(fused::EmbedBackward a) {
  constexpr int kWarps = kEmbedThreads / 32;
  __shared__ unsigned found[2][kWarps];  // a thread may be one barrier ahead of another
  const long long first = blockIdx.x;
  const int me = static_cast<int>(threadIdx.x);
  const int id = a.ids_N[first];
  int earlier = 0;
  for (long long t = me; t < first && earlier == 0; t += kEmbedThreads) earlier = a.ids_N[t] == id;
  if (__syncthreads_or(earlier) != 0) return;
  const int column = static_cast<int>(blockIdx.y) * kEmbedColumns + me * 8;
  float sum[8] = {};
  int turn = 0;
  for (long long from = first; from < a.rows; from += kEmbedThreads, turn ^= 1) {
    const long long t = from + me;
    const unsigned mine = __ballot_sync(0xffffffffu, t < a.rows && a.ids_N[t] == id);
    if (me % 32 == 0) found[turn][me / 32] = mine;
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) {
      for (unsigned left = found[turn][w]; left != 0; left &= left - 1)
        add_row<T>(sum, a, from + 32 * w + __ffs(static_cast<int>(left)) - 1, column);
    }
  }
  put_row(a, id, column, sum);
}

/// One block for each position and 1024 columns.
template <typename T>
__global__ void __launch_bounds__(kEmbedThreads) embed_backward_positions(fused::EmbedBackward a) {
  const long long position = blockIdx.x;
  const int column = static_cast<int>(blockIdx.y) * kEmbedColumns + static_cast<int>(threadIdx.x) * 8;
  float sum[8] = {};
  for (long long t = position; t < a.rows; t += a.row_length) add_row<T>(sum, a, t, column);
  put_row(a, position, column, sum);
}

}  // namespace fsdp::cuda
