#pragma once
// silu(gate) * up, and its backward in place: grad becomes the output once more, gate and up their gradients.
#include "lib/cuda/kernels/device.cuh"

namespace fsdp::cuda {

constexpr int kFlatThreads = 256;

template <typename T, bool kBackward>
__global__ void __launch_bounds__(kFlatThreads) swiglu(fused::Swiglu a) {
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
      const float sigmoid = 1.0f / (1.0f + expf(-gate[k]));
      const float silu = gate[k] * sigmoid;
      const float incoming = out[k];
      out[k] = silu * up[k];
      if constexpr (kBackward) {
        gate[k] = incoming * up[k] * sigmoid * (gate[k] * (1.0f - sigmoid) + 1.0f);
        up[k] = incoming * silu;
      }
    }
    store_eight(outs, out, count, a.packed);
    if constexpr (kBackward) {
      store_eight(gates, gate, count, a.packed);
      store_eight(ups, up, count, a.packed);
    }
  }
}

}  // namespace fsdp::cuda
