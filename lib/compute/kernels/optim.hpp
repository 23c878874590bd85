// Included by isa.cpp inside a per-instruction-set namespace. One pass over a parameter, its gradient and its states.

inline void sgd(const SgdArgs& a, std::int64_t begin, std::int64_t end) {
  if (a.momentum_buffer == nullptr) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      a.param[i] -= a.lr * (a.grad[i] * a.grad_scale + a.weight_decay * a.param[i]);
    }
    return;
  }
  const float look_ahead = a.nesterov ? a.momentum : 1.0f, direct = a.nesterov ? 1.0f : 0.0f;
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    const float g = a.grad[i] * a.grad_scale + a.weight_decay * a.param[i];
    const float b = a.momentum * a.momentum_buffer[i] + g;
    a.momentum_buffer[i] = b;
    a.param[i] -= a.lr * (direct * g + look_ahead * b);
  }
}

inline void lion(const LionArgs& a, std::int64_t begin, std::int64_t end) {
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    const float g = a.grad[i] * a.grad_scale, m = a.exp_avg[i];
    const float c = a.beta1 * m + a.rest1 * g;
    const float sign = static_cast<float>(c > 0.0f) - static_cast<float>(c < 0.0f);
    a.param[i] = difference_of_products(a.param[i], a.weight_decay_factor, a.lr, sign);
    a.exp_avg[i] = a.beta2 * m + a.rest2 * g;
  }
}

/// `value` as it is read back from T: in registers, so that loops with it become vectors. A NaN that arithmetic makes
/// stays one.
template <typename T>
inline float rounded(float value) {
  if constexpr (std::is_same_v<T, float>) return value;
  const auto u = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u);
}

/// Of a value that is rounded already.
inline void store_rounded(float* p, std::int64_t i, float v) { p[i] = v; }
inline void store_rounded(Bf16* p, std::int64_t i, float v) {
  p[i].bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16);
}

/// \param a  a copy: its members are no memory that the loop writes to
template <typename Param, typename Momentum, typename Variance, bool kCompensated>
void any_precision_loop(const AnyPrecisionArgs a, std::int64_t begin, std::int64_t end) {
  auto* exp_avg = static_cast<Momentum*>(a.exp_avg);
  auto* exp_avg_sq = static_cast<Variance*>(a.exp_avg_sq);
  auto* compensation = static_cast<Bf16*>(a.compensation);
  auto* param = static_cast<Param*>(a.param);
  // As PyTorch adds a number, or a multiple of a tensor of 16 bits, to another one on a CPU.
  const float eps = rounded<Variance>(a.eps);
  const float rest1 = std::is_same_v<Param, Bf16> ? rounded<Momentum>(a.rest1) : a.rest1;
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    const float g = a.grad[i] * a.grad_scale;
    const float m = rounded<Momentum>(rounded<Momentum>(load(exp_avg, i) * a.beta1) + rest1 * g);
    const float v = rounded<Variance>(rounded<Variance>(load(exp_avg_sq, i) * a.beta2) + a.rest2 * (g * g));
    store_rounded(exp_avg, i, m);
    store_rounded(exp_avg_sq, i, v);
    const float root = rounded<Variance>(rounded<Variance>(std::sqrt(v)) / a.denom_correction);
    const float update = -a.step_size * (m / rounded<Variance>(root + eps));
    const float p = rounded<Param>(load(param, i) * a.weight_decay_factor);
    if constexpr (kCompensated) {
      const float wanted = rounded<Bf16>(load(compensation, i) + update), q = rounded<Param>(p + wanted);
      store_rounded(param, i, q);
      store_rounded(compensation, i, rounded<Bf16>(wanted + rounded<Param>(p - q)));
    } else {
      store_rounded(param, i, rounded<Param>(p + update));
    }
  }
}

template <typename Param, typename Momentum, typename Variance>
void any_precision(const AnyPrecisionArgs& a, std::int64_t begin, std::int64_t end) {
  if (a.compensation == nullptr) {
    any_precision_loop<Param, Momentum, Variance, false>(a, begin, end);
  } else {
    any_precision_loop<Param, Momentum, Variance, true>(a, begin, end);
  }
}

template <typename Param>
void any_precision_of(Type momentum, Type variance, const AnyPrecisionArgs& a, std::int64_t begin, std::int64_t end) {
  if (momentum == Type::bf16) {
    (variance == Type::bf16 ? any_precision<Param, Bf16, Bf16> : any_precision<Param, Bf16, float>)(a, begin, end);
  } else {
    (variance == Type::bf16 ? any_precision<Param, float, Bf16> : any_precision<Param, float, float>)(a, begin, end);
  }
}
