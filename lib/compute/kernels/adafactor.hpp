// Included by isa.cpp inside a per-instruction-set namespace. Adafactor, rows [begin, end) of a matrix; a vector is
// one.

/// As torch.lerp: exactly `to` with weight 1.
inline float lerp(float from, double to, double weight) {
  const double difference = to - static_cast<double>(from);
  return static_cast<float>(weight < 0.5 ? static_cast<double>(from) + weight * difference
                                         : to - difference * (1 - weight));
}

/// Columns [begin, end) of col_var take in the means of this step's squares, `scale` times their sums.
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

/// Columns [begin, end) of `rows` rows.
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

/// body(i, update before clipping) for the elements of a row. \return the sum of what it returns
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
