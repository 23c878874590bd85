#pragma once
// Heads into columns of rows, the first of them rotated by their position: rotary embedding in place, and in the
// backward of attention, whose gradients then need no pass to lie beside each other.
#include "lib/compute/cuda/kernels/device.cuh"

namespace fsdp::cuda {

constexpr int kHeadThreads = 128;

/// One block for each row. An item is eight elements of a head's lower half and those of the upper half behind them.
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

}  // namespace fsdp::cuda
