// Passes over many tensors at once: sums of squares, updates, and casts between master weights and the parameter dtype.
// A thread block takes kBlockElements elements of one tensor.
#include <algorithm>

#include "lib/compute/cuda/kernels/device.cuh"
#include "lib/compute/cuda/kernels/launched_kernels.hpp"
#include "lib/compute/ops/updates/clip_divisor.hpp"

namespace fsdp::cuda {

constexpr int kUpdateThreads = 256;

/// Elements [begin, end) of a tensor that this thread block takes.
struct BlockRange {
  int tensor = 0;
  long long begin, end;

  template <typename Pass>
  __device__ __forceinline__ explicit BlockRange(const Pass& a) {
    const long long block = blockIdx.x;
    while (block >= a.first_block[tensor + 1]) ++tensor;
    begin = (block - a.first_block[tensor]) * fused::kBlockElements;
    end = begin + fused::kBlockElements < a.elements[tensor] ? begin + fused::kBlockElements : a.elements[tensor];
  }
};

__device__ __forceinline__ bool is_packed(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

__global__ void __launch_bounds__(kUpdateThreads) sum_squares(const __grid_constant__ fused::SumSquares a) {
  __shared__ double room[kMaxWarps];
  const BlockRange range(a);
  const void* data = a.data[range.tensor];
  const Type type = a.type[range.tensor];
  const bool packed = is_packed(data);
  float sum = 0;  // float32 suffices for at most 128 squares
  for (long long at = range.begin + threadIdx.x * 8; at < range.end; at += kUpdateThreads * 8) {
    float x[8];
    load_eight(x, data, type, at, range.end - at, packed);
#pragma unroll
    for (int k = 0; k < 8; ++k) sum = __fmaf_rn(x[k], x[k], sum);
  }
  const double all = block_sum(static_cast<double>(sum), room);
  if (threadIdx.x == 0) a.partial[blockIdx.x] = all;
}

__global__ void __launch_bounds__(kUpdateThreads) total_sum(fused::TotalSum a) {
  __shared__ double room[kMaxWarps];
  double sum = 0;
  for (long long b = threadIdx.x; b < a.blocks; b += kUpdateThreads) sum += a.partial[b];
  sum = block_sum(sum, room);
  if (threadIdx.x == 0) *a.sum = sum;
}

__device__ __forceinline__ bool is_finite(double x) { return x - x == 0.0; }

__global__ void decide_step(fused::DecideStep a) {
  const double squares = *a.squares / a.replicas, nats = *a.nats;
  const double norm = sqrt(squares);
  a.decision[fused::kDivisor] = clip_divisor(norm, a.loss_scale, a.clip_norm);
  const bool follows_skip = a.before != nullptr && a.before[fused::kSkipped] != 0.0;
  a.decision[fused::kSkipped] = is_finite(squares) && is_finite(nats) && !follows_skip ? 0.0 : 1.0;
  a.decision[fused::kNorm] = norm;
  a.decision[fused::kNats] = nats;
}

template <typename T>
__global__ void __launch_bounds__(kUpdateThreads) adamw(const __grid_constant__ fused::AdamW a) {
  if (a.decision != nullptr && a.decision[fused::kSkipped] != 0.0) return;
  const float divisor = a.decision == nullptr ? a.grad_divisor : static_cast<float>(a.decision[fused::kDivisor]);
  const BlockRange range(a);
  float* params = a.param[range.tensor];
  float *means = a.exp_avg[range.tensor], *squares = a.exp_avg_sq[range.tensor];
  const void* grads = a.grad[range.tensor];
  const Type grad_type = a.grad_type[range.tensor];
  T* cast_params = static_cast<T*>(a.cast_params[range.tensor]);
  const bool packed =
      is_packed(params) && is_packed(means) && is_packed(squares) && is_packed(grads) && is_packed(cast_params);
  for (long long at = range.begin + threadIdx.x * 8; at < range.end; at += kUpdateThreads * 8) {
    const long long count = range.end - at;
    float p[8], m[8], v[8], g[8];
    load_eight(p, params + at, count, packed);
    load_eight(m, means + at, count, packed);
    load_eight(v, squares + at, count, packed);
    load_eight(g, grads, grad_type, at, count, packed);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float grad = g[k] / divisor;
      m[k] = a.beta1 * m[k] + a.rest1 * grad;
      v[k] = a.beta2 * v[k] + a.rest2 * grad * grad;
      p[k] = p[k] * a.decay_factor - a.step_size * m[k] / (sqrtf(v[k]) / a.correction + a.eps);
    }
    store_eight(params + at, p, count, packed);
    if (cast_params != nullptr) store_eight(cast_params + at, p, count, packed);
    store_eight(means + at, m, count, packed);
    store_eight(squares + at, v, count, packed);
  }
}

__device__ __forceinline__ float rounded(float x, Type type) {
  if (type == Type::bf16) return rounded<__nv_bfloat16>(x);
  return type == Type::f16 ? rounded<__half>(x) : x;
}

/// One element of an elementwise update. Formulas and roundings: lib/compute/kernels/optim.hpp.
struct UpdatedElement {
  float param, grad, states[3];

  __device__ __forceinline__ void sgd(const fused::Elementwise& a) {
    float step = grad + a.weight_decay * param;
    if (a.num_states > 0) {
      states[0] = a.numbers[0] * states[0] + step;
      step = a.numbers[1] != 0.0f ? step + a.numbers[0] * states[0] : states[0];
    }
    param -= a.lr * step;
  }

  __device__ __forceinline__ void lion(const fused::Elementwise& a) {
    const float c = a.numbers[0] * states[0] + a.numbers[2] * grad;
    const float sign = static_cast<float>(c > 0.0f) - static_cast<float>(c < 0.0f);
    param = param * a.decay_factor - a.lr * sign;
    states[0] = a.numbers[1] * states[0] + a.numbers[3] * grad;
  }

  __device__ __forceinline__ void anyprecision(const fused::Elementwise& a, Type of_param) {
    const Type of_mean = a.state_types[0], of_square = a.state_types[1];
    const float rest1 = of_param == Type::bf16 ? rounded(a.numbers[2], of_mean) : a.numbers[2];
    states[0] = rounded(rounded(states[0] * a.numbers[0], of_mean) + rest1 * grad, of_mean);
    states[1] = rounded(rounded(states[1] * a.numbers[1], of_square) + a.numbers[3] * (grad * grad), of_square);
    const float root = rounded(rounded(sqrtf(states[1]), of_square) / a.numbers[6], of_square);
    const float update = -a.numbers[5] * (states[0] / rounded(root + rounded(a.numbers[4], of_square), of_square));
    const float before = rounded(param * a.decay_factor, of_param);
    if (a.num_states < 3) {
      param = rounded(before + update, of_param);
      return;
    }
    const float wanted = rounded(states[2] + update, a.state_types[2]);
    param = rounded(before + wanted, of_param);
    states[2] = rounded(wanted + rounded(before - param, of_param), a.state_types[2]);
  }
};

template <fused::ElementwiseKind kKind>
__global__ void __launch_bounds__(kUpdateThreads) elementwise(const __grid_constant__ fused::Elementwise a) {
  using Kind = fused::ElementwiseKind;
  constexpr int kMostStates = kKind == Kind::anyprecision ? 3 : 1;
  if (a.decision != nullptr && a.decision[fused::kSkipped] != 0.0) return;
  const float divisor = a.decision == nullptr ? a.grad_divisor : static_cast<float>(a.decision[fused::kDivisor]);
  const BlockRange range(a);
  const int n = range.tensor;
  bool packed = is_packed(a.param[n]) && is_packed(a.grad[n]) && is_packed(a.cast_params[n]);
#pragma unroll
  for (int s = 0; s < kMostStates; ++s) packed = packed && is_packed(a.states[s][n]);
  for (long long at = range.begin + threadIdx.x * 8; at < range.end; at += kUpdateThreads * 8) {
    const long long count = range.end - at;
    float param[8], grad[8], states[kMostStates][8];
    load_eight(param, a.param[n], a.param_type[n], at, count, packed);
    load_eight(grad, a.grad[n], a.grad_type[n], at, count, packed);
#pragma unroll
    for (int s = 0; s < kMostStates; ++s) {
      if (s < a.num_states) load_eight(states[s], a.states[s][n], a.state_types[s], at, count, packed);
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      UpdatedElement e{param[k], grad[k] / divisor, {}};
#pragma unroll
      for (int s = 0; s < kMostStates; ++s) e.states[s] = states[s][k];
      if constexpr (kKind == Kind::sgd) e.sgd(a);
      if constexpr (kKind == Kind::lion) e.lion(a);
      if constexpr (kKind == Kind::anyprecision) e.anyprecision(a, a.param_type[n]);
      param[k] = e.param;
#pragma unroll
      for (int s = 0; s < kMostStates; ++s) states[s][k] = e.states[s];
    }
    if (a.cast_params[n] != nullptr) {
      float cast[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) cast[k] = param[k];
      put_eight({a.cast_params[n], a.cast_type}, at, cast, count, packed);
    }
    put_eight({a.param[n], a.param_type[n]}, at, param, count, packed);
#pragma unroll
    for (int s = 0; s < kMostStates; ++s) {
      if (s < a.num_states) put_eight({a.states[s][n], a.state_types[s]}, at, states[s], count, packed);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kUpdateThreads) cast_shards(const __grid_constant__ fused::CastShards a) {
  const BlockRange range(a);
  const float* from = a.from[range.tensor];
  auto* to = static_cast<T*>(a.to[range.tensor]);
  const bool packed = is_packed(from) && is_packed(to);
  for (long long at = range.begin + threadIdx.x * 8; at < range.end; at += kUpdateThreads * 8) {
    float x[8];
    load_eight(x, from + at, range.end - at, packed);
    store_eight(to + at, x, range.end - at, packed);
  }
}

template <typename T>
__global__ void __launch_bounds__(kUpdateThreads) upcast_sums(const __grid_constant__ fused::UpcastSums a) {
  const BlockRange range(a);
  const auto* from = static_cast<const T*>(a.from[range.tensor]);
  float* to = a.to[range.tensor];
  const bool packed = is_packed(from) && is_packed(to);
  for (long long at = range.begin + threadIdx.x * 8; at < range.end; at += kUpdateThreads * 8) {
    float x[8];
    load_eight(x, from + at, range.end - at, packed);
    put_eight(to + at, x, range.end - at, packed, a.add[range.tensor]);
  }
}

namespace {

template <typename Pass>
dim3 grid_of(const Pass& a) {
  return {static_cast<unsigned>(a.first_block[a.tensors]), 1, 1};
}

}  // namespace

bool LaunchedKernels::have_code() {
#ifdef __CUDACC__
  cudaFuncAttributes unused{};
  if (cudaFuncGetAttributes(&unused, cuda::total_sum) == cudaSuccess) return true;
  static_cast<void>(cudaGetLastError());
  return false;
#else
  return true;
#endif
}

void LaunchedKernels::sum_squares(const fused::SumSquares& a) const {
  launch(cuda::sum_squares, grid_of(a), kUpdateThreads, stream(), a);
  check_launch();
}

void LaunchedKernels::total_sum(const fused::TotalSum& a) const {
  launch(cuda::total_sum, dim3{1, 1, 1}, kUpdateThreads, stream(), a);
  check_launch();
}

void LaunchedKernels::decide_step(const fused::DecideStep& a) const {
  launch(cuda::decide_step, dim3{1, 1, 1}, 1, stream(), a);
  check_launch();
}

void LaunchedKernels::adamw(const fused::AdamW& a) const {
  with_type(a.cast_type,
            [&](auto type) { launch(cuda::adamw<decltype(type)>, grid_of(a), kUpdateThreads, stream(), a); });
  check_launch();
}

void LaunchedKernels::elementwise(const fused::Elementwise& a) const {
  const auto run = [&](auto kernel) { launch(kernel, grid_of(a), kUpdateThreads, stream(), a); };
  switch (a.kind) {
    case fused::ElementwiseKind::sgd:
      run(cuda::elementwise<fused::ElementwiseKind::sgd>);
      break;
    case fused::ElementwiseKind::lion:
      run(cuda::elementwise<fused::ElementwiseKind::lion>);
      break;
    case fused::ElementwiseKind::anyprecision:
      run(cuda::elementwise<fused::ElementwiseKind::anyprecision>);
      break;
  }
  check_launch();
}

void LaunchedKernels::cast_shards(const fused::CastShards& a) const {
  with_type(a.type,
            [&](auto type) { launch(cuda::cast_shards<decltype(type)>, grid_of(a), kUpdateThreads, stream(), a); });
  check_launch();
}

void LaunchedKernels::upcast_sums(const fused::UpcastSums& a) const {
  with_type(a.type,
            [&](auto type) { launch(cuda::upcast_sums<decltype(type)>, grid_of(a), kUpdateThreads, stream(), a); });
  check_launch();
}

}  // namespace fsdp::cuda
