// Included by isa.cpp inside a per-instruction-set namespace. RMSNorm, gated feed-forward, rotary positions and their
// backwards.

template <typename T>
void rms_norm(const RmsNormArgs& a, std::int64_t begin, std::int64_t end) {
  const auto* gamma = static_cast<const T*>(a.gamma_D);
  for (std::int64_t t = begin; t < end; ++t) {
    const T* x = static_cast<const T*>(a.x_TD) + t * a.dim;
    if (a.y_TD != nullptr) {
      T* sum = static_cast<T*>(a.sum_out_TD) + t * a.dim;
      const T* y = static_cast<const T*>(a.y_TD) + t * a.dim;
      add_rows(sum, x, y, static_cast<const T*>(a.y_bias_D), a.dim);
      x = sum;
    }
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (std::int64_t j = 0; j < a.dim; ++j) squares += load(x, j) * load(x, j);
    const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(a.dim) + static_cast<float>(a.eps));
    a.rstd_T[t] = rstd;
    T* out = static_cast<T*>(a.out_TD) + t * a.dim;
#pragma omp simd
    for (std::int64_t j = 0; j < a.dim; ++j) store(out, j, load(x, j) * rstd * (a.offset + load(gamma, j)));
  }
}

template <typename T>
void rms_norm_backward(const RmsNormBackwardArgs& a, std::int64_t begin, std::int64_t end) {
  const auto* gamma = static_cast<const T*>(a.gamma_D);
  float* grad_gamma = a.grad_gamma_D;
  for (std::int64_t t = begin; t < end; ++t) {
    const T* g = static_cast<const T*>(a.grad_out_TD) + t * a.dim;
    const T* x = static_cast<const T*>(a.x_TD) + t * a.dim;
    const T* residual = a.residual_TD == nullptr ? nullptr : static_cast<const T*>(a.residual_TD) + t * a.dim;
    T* out = static_cast<T*>(a.grad_x_TD) + t * a.dim;
    T* again = a.recomputed_TD == nullptr ? nullptr : static_cast<T*>(a.recomputed_TD) + t * a.dim;
    const float rstd = a.rstd_T[t];
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t j = 0; j < a.dim; ++j) {
      const float normal = load(x, j) * rstd;
      const float grad = load(g, j);
      grad_gamma[j] += grad * normal;
      sum += grad * (a.offset + load(gamma, j)) * normal;
    }
    const float mean = sum / static_cast<float>(a.dim);
#pragma omp simd
    for (std::int64_t j = 0; j < a.dim; ++j) {
      const float normal = load(x, j) * rstd;
      float v = rstd * (load(g, j) * (a.offset + load(gamma, j)) - normal * mean);
      if (residual != nullptr) v += load(residual, j);
      store(out, j, v);
    }
    if (a.sum_grad_x_D != nullptr) {
#pragma omp simd
      for (std::int64_t j = 0; j < a.dim; ++j) a.sum_grad_x_D[j] += load(out, j);
    }
    if (again != nullptr) {
#pragma omp simd
      for (std::int64_t j = 0; j < a.dim; ++j) store(again, j, load(x, j) * rstd * (a.offset + load(gamma, j)));
    }
  }
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exp_approx(-x)); }

/// Value and derivative of an activation.
struct Activated {
  float value, slope;
};

struct Silu {
  static Activated at(float x) {
    const float s = sigmoid(x);
    return {x * s, s * (1.0f + x * (1.0f - s))};
  }
};

/// 0.5 x (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh {
  static Activated at(float x) {
    constexpr float kTwice = 1.5957691216057308f, kCubic = 0.044715f;
    const float s = sigmoid(kTwice * (x + kCubic * x * x * x));
    return {x * s, s + x * s * (1.0f - s) * kTwice * (1.0f + 3.0f * kCubic * x * x)};
  }
};

template <typename T, typename Activation>
void gated_rows(const GatedArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    const auto* gate = static_cast<const T*>(a.gate_TD) + t * a.leading;
    const auto* up = static_cast<const T*>(a.up_TD) + t * a.leading;
    auto* out = static_cast<T*>(a.out_TD) + t * a.dim;
#pragma omp simd
    for (std::int64_t i = 0; i < a.dim; ++i) store(out, i, Activation::at(load(gate, i)).value * load(up, i));
  }
}

template <typename T>
void gated(const GatedArgs& a, std::int64_t begin, std::int64_t end) {
  a.gelu ? gated_rows<T, GeluTanh>(a, begin, end) : gated_rows<T, Silu>(a, begin, end);
}

template <typename T, typename Activation>
void gated_backward_rows(const GatedBackwardArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    auto* grad = static_cast<T*>(a.grad_TD) + t * a.dim;
    auto* gate = static_cast<T*>(a.gate_TD) + t * a.leading;
    auto* up = static_cast<T*>(a.up_TD) + t * a.leading;
#pragma omp simd
    for (std::int64_t i = 0; i < a.dim; ++i) {
      const float d = load(grad, i);
      const float u = load(up, i);
      const auto act = Activation::at(load(gate, i));
      store(gate, i, d * u * act.slope);
      store(up, i, d * act.value);
      store(grad, i, act.value * u);
    }
  }
}

template <typename T>
void gated_backward(const GatedBackwardArgs& a, std::int64_t begin, std::int64_t end) {
  a.gelu ? gated_backward_rows<T, GeluTanh>(a, begin, end) : gated_backward_rows<T, Silu>(a, begin, end);
}

template <typename T>
void rope(const RopeArgs& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t half = a.pairs;
  const float sign = a.inverse ? -1.0f : 1.0f;
  for (std::int64_t t = begin; t < end; ++t) {
    const std::int64_t position = a.positions_T != nullptr ? a.positions_T[t] : a.first_position + t % a.row_length;
    const float* cosine = a.cos_PH + position * half;
    const float* sine = a.sin_PH + position * half;
    for (std::int64_t h = 0; h < a.heads; ++h) {
      T* low = static_cast<T*>(a.x) + t * a.leading + h * a.head_size;
      T* high = low + half;
#pragma omp simd
      for (std::int64_t j = 0; j < half; ++j) {
        const float x = load(low, j);
        const float y = load(high, j);
        const float s = sign * sine[j];
        store(low, j, x * cosine[j] - y * s);
        store(high, j, y * cosine[j] + x * s);
      }
    }
  }
}
