#pragma once
// silu(gate) * up, and its backward in place: grad becomes the output once more, gate and up their gradients.
#include "lib/cuda/kernels/device.cuh"

namespace fsdp::cuda {

constexpr int kFlatThreads = 256;

template <typename T, bool kBackward>
__global__ void __launch_bounds__(kFlatThreads) swiglu(fused::Swiglu a) {
  const long long at = (static_cast<long long>(blockIdx.x) * kFlatThreads + threadIdx.x) * 8;
  const long long count = a.elements - at;
  if (count <= 0) return;
  float gate[8], up[8], out[8] = {};
  load_eight(gate, static_cast<const T*>(a.gate_NF) + at, count, true);
  load_eight(up, static_cast<const T*>(a.up_NF) + at, count, true);
  if constexpr (kBackward) load_eight(out, static_cast<const T*>(a.out_NF) + at, count, true);
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
  store_eight(static_cast<T*>(a.out_NF) + at, out, count, true);
  if constexpr (kBackward) {
    store_eight(static_cast<T*>(a.gate_NF) + at, gate, count, true);
    store_eight(static_cast<T*>(a.up_NF) + at, up, count, true);
  }
}

}  // namespace fsdp::cuda
