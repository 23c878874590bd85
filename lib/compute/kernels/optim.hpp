// Included by isa.cpp inside a per-instruction-set namespace. Optimizer updates, each one pass over elements [begin,
// end) of flat arrays: a parameter, its gradient and its states (optim_args.hpp). The formulas are those of
// torch/optim/sgd.py, Lion (Chen et al., 2023), torchdistx's AnyPrecisionAdamW and torch/optim/_adafactor.py; see
// lib/engine/optim/optimizers.cpp.

/// Numbers: momentum, nesterov (0 or 1). States: momentum_buffer, or none without momentum.
inline void sgd(const UpdateArgs& a, std::int64_t begin, std::int64_t end) {
  float *param = a.floats_of_param(), *momentum_buffer = a.floats_of_state(0);
  if (momentum_buffer == nullptr) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      param[i] -= a.lr * (a.grad[i] * a.grad_scale + a.weight_decay * param[i]);
    }
    return;
  }
  const float momentum = a.numbers[0];
  const bool nesterov = a.numbers[1] != 0;
  const float look_ahead = nesterov ? momentum : 1.0f, direct = nesterov ? 1.0f : 0.0f;
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    const float g = a.grad[i] * a.grad_scale + a.weight_decay * param[i];
    const float b = momentum * momentum_buffer[i] + g;
    momentum_buffer[i] = b;
    param[i] -= a.lr * (direct * g + look_ahead * b);
  }
}

/// Numbers: beta1, beta2, 1 - beta1, 1 - beta2. States: exp_avg.
inline void lion(const UpdateArgs& a, std::int64_t begin, std::int64_t end) {
  const float beta1 = a.numbers[0], beta2 = a.numbers[1], rest1 = a.numbers[2], rest2 = a.numbers[3];
  float *param = a.floats_of_param(), *exp_avg = a.floats_of_state(0);
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    const float g = a.grad[i] * a.grad_scale, m = exp_avg[i];
    const float c = beta1 * m + rest1 * g;
    const float sign = static_cast<float>(c > 0.0f) - static_cast<float>(c < 0.0f);
    param[i] = difference_of_products(param[i], a.decay_factor, a.lr, sign);
    exp_avg[i] = beta2 * m + rest2 * g;
  }
}

/// \return `value` rounded to T, computed in registers, so that loops vectorize. NaNs that arithmetic produces stay
/// NaNs.
template <typename T>
inline float rounded(float value) {
  if constexpr (std::is_same_v<T, float>) return value;
  const auto u = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u);
}

/// Stores a value that is already rounded to the element type.
inline void store_rounded(float* p, std::int64_t i, float v) { p[i] = v; }
inline void store_rounded(Bf16* p, std::int64_t i, float v) {
  p[i].bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16);
}

/// Numbers: beta1, beta2, 1 - beta1, 1 - beta2, eps, lr / (1 - beta1^t), sqrt(1 - beta2^t). States: exp_avg,
/// exp_avg_sq, and compensation where it is kept. \param a  a copy: its members are no memory that the loop writes to
template <typename Param, typename Momentum, typename Variance, bool kCompensated>
void any_precision_loop(const UpdateArgs a, std::int64_t begin, std::int64_t end) {
  const float beta1 = a.numbers[0], beta2 = a.numbers[1], rest2 = a.numbers[3];
  const float step_size = a.numbers[5], denom_correction = a.numbers[6];
  auto* exp_avg = static_cast<Momentum*>(a.states[0].data);
  auto* exp_avg_sq = static_cast<Variance*>(a.states[1].data);
  auto* compensation = static_cast<Bf16*>(a.states[2].data);
  auto* param = static_cast<Param*>(a.param.data);
  // The same arithmetic as PyTorch's CPU operators that add a scalar, or a multiple of a 16-bit tensor, to a tensor.
  const float eps = rounded<Variance>(a.numbers[4]);
  const float rest1 = std::is_same_v<Param, Bf16> ? rounded<Momentum>(a.numbers[2]) : a.numbers[2];
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    const float g = a.grad[i] * a.grad_scale;
    const float m = rounded<Momentum>(rounded<Momentum>(load(exp_avg, i) * beta1) + rest1 * g);
    const float v = rounded<Variance>(rounded<Variance>(load(exp_avg_sq, i) * beta2) + rest2 * (g * g));
    store_rounded(exp_avg, i, m);
    store_rounded(exp_avg_sq, i, v);
    const float root = rounded<Variance>(rounded<Variance>(std::sqrt(v)) / denom_correction);
    const float update = -step_size * (m / rounded<Variance>(root + eps));
    const float p = rounded<Param>(load(param, i) * a.decay_factor);
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
void any_precision(const UpdateArgs& a, std::int64_t begin, std::int64_t end) {
  if (a.states[2].data == nullptr) {
    any_precision_loop<Param, Momentum, Variance, false>(a, begin, end);
  } else {
    any_precision_loop<Param, Momentum, Variance, true>(a, begin, end);
  }
}

template <typename Param>
void any_precision_of(const UpdateArgs& a, std::int64_t begin, std::int64_t end) {
  const bool narrow = a.states[1].type == Type::bf16;
  if (a.states[0].type == Type::bf16) {
    (narrow ? any_precision<Param, Bf16, Bf16> : any_precision<Param, Bf16, float>)(a, begin, end);
  } else {
    (narrow ? any_precision<Param, float, Bf16> : any_precision<Param, float, float>)(a, begin, end);
  }
}

inline void any_precision_of_all(const UpdateArgs& a, std::int64_t begin, std::int64_t end) {
  (a.param.type == Type::bf16 ? any_precision_of<Bf16> : any_precision_of<float>)(a, begin, end);
}

/// The elementwise updates by name; a new one needs a row here and no other place in lib/compute.
constexpr UpdateKernel kUpdates[] = {{"sgd", sgd}, {"lion", lion}, {"anyprecision", any_precision_of_all, true}};

// Adafactor: rows [begin, end) of [rows, columns]; a parameter that is not a matrix is one row.

/// torch.lerp(): exactly `to` if weight is 1.
inline float lerp(float from, double to, double weight) {
  const double difference = to - static_cast<double>(from);
  return static_cast<float>(weight < 0.5 ? static_cast<double>(from) + weight * difference
                                         : to - difference * (1 - weight));
}

/// Averages columns [begin, end) of col_var with this step's means, `scale` times column_sums.
inline void adafactor_column_means(const AdafactorArgs& a, double scale, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i)
    a.col_var[i] = lerp(a.col_var[i], a.column_sums[i] * scale + a.square_eps, a.new_weight);
}

inline void adafactor_rows(const AdafactorArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const float* grad = a.grad + row * a.columns;
    const float* param = a.param + row * a.columns;
    double squares = 0, params = 0;
#pragma omp simd reduction(+ : squares, params)
    for (std::int64_t i = 0; i < a.columns; ++i) {
      const double g = static_cast<double>(grad[i] * a.grad_scale), p = static_cast<double>(param[i]);
      squares += g * g;
      params += p * p;
    }
    a.row_sums[row] = params;
    if (a.variance == nullptr) {
      const double mean = squares / static_cast<double>(a.columns) + a.square_eps;
      a.row_var[row] = lerp(a.row_var[row], mean, a.new_weight);
      continue;
    }
    for (std::int64_t i = 0; i < a.columns; ++i) {
      const double g = static_cast<double>(grad[i] * a.grad_scale);
      a.variance[i] = lerp(a.variance[i], g * g + a.square_eps, a.new_weight);
    }
  }
}

/// Sums squared gradients of `rows` rows into columns [begin, end) of column_sums.
inline void adafactor_columns(const AdafactorArgs& a, std::int64_t rows, std::int64_t begin, std::int64_t end) {
  double* sums = a.column_sums;
  for (std::int64_t i = begin; i < end; ++i) sums[i] = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* grad = a.grad + row * a.columns;
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      const double g = static_cast<double>(grad[i] * a.grad_scale);
      sums[i] += g * g;
    }
  }
}

/// Calls body(i, update before clipping) for each element of a row. \return the sum of its results
template <typename Body>
inline double for_updates(const AdafactorArgs& a, std::int64_t row, const Body& body) {
  const float* grad = a.grad + row * a.columns;
  double sum = 0;
  if (a.variance != nullptr) {
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < a.columns; ++i)
      sum += body(i, grad[i] * a.grad_scale / std::sqrt(std::max(a.variance[i], a.least_variance)));
  } else if (a.separate_roots) {
    const float root = 1.0f / std::sqrt(a.row_var[row] * a.row_scale);
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < a.columns; ++i)
      sum += body(i, grad[i] * a.grad_scale * root / std::sqrt(a.col_var[i]));
  } else {
    const float factor = a.row_var[row] * a.row_scale;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < a.columns; ++i)
      sum += body(i, grad[i] * a.grad_scale / std::sqrt(std::max(factor * a.col_var[i], a.least_variance)));
  }
  return sum;
}

inline void adafactor_sizes(const AdafactorArgs& a, std::int64_t begin, std::int64_t end) {
  const auto square = [](std::int64_t, float u) { return static_cast<double>(u) * static_cast<double>(u); };
  for (std::int64_t row = begin; row < end; ++row) a.row_sums[row] = for_updates(a, row, square);
}

inline void adafactor_apply(const AdafactorArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    float* param = a.param + row * a.columns;
    float* average = a.exp_avg == nullptr ? nullptr : a.exp_avg + row * a.columns;
    if (average == nullptr) {
      for_updates(a, row, [&](std::int64_t i, float u) {
        param[i] = difference_of_products(param[i], a.weight_decay_factor, a.rate, u);
        return 0.0;
      });
    } else {
      for_updates(a, row, [&](std::int64_t i, float u) {
        average[i] = a.beta1 * average[i] + a.rest1 * (a.rate * u);
        param[i] = param[i] * a.weight_decay_factor - average[i];
        return 0.0;
      });
    }
  }
}
