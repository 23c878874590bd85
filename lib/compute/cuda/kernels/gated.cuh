#pragma once
// act(gate) * up, and its backward in place: grad becomes the output once more, gate and up their gradients.
#include "lib/compute/cuda/kernels/device.cuh"

namespace fsdp::cuda {

constexpr int kFlatThreads = 256;

/// An activation's value and slope.
struct Activated {
  float value, slope;
};

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <bool kGelu>
__device__ __forceinline__ Activated activate(float x) {
  if constexpr (kGelu) {
    // 0.5 x (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
    constexpr float kTwice = 1.5957691216057308f, kCubic = 0.044715f;
    const float s = sigmoid(kTwice * (x + kCubic * x * x * x));
    return {x * s, s + x * s * (1.0f - s) * kTwice * (1.0f + 3.0f * kCubic * x * x)};
  } else {
    const float s = sigmoid(x);
    return {x * s, s * (x * (1.0f - s) + 1.0f)};
  }
}

template <typename T, bool kBackward, bool kGelu>
__global__ void __launch_bounds__(kFlatThreads) gated(fused::Gated a) {
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
      const auto act = activate<kGelu>(gate[k]);
      const float incoming = out[k];
      out[k] = act.value * up[k];
      if constexpr (kBackward) {
        gate[k] = incoming * up[k] * act.slope;
        up[k] = incoming * act.value;
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
