// Included by isa.cpp inside a per-instruction-set namespace. Embedding, LayerNorm, GELU and their backwards.

template <typename T>
void embed(const EmbedArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    T* out = static_cast<T*>(a.out_TD) + t * a.dim;
    const T* token = static_cast<const T*>(a.token_VD) + a.ids_T[t] * a.dim;
    if (a.position_LD == nullptr) {
      std::memcpy(out, token, static_cast<std::size_t>(a.dim) * sizeof(T));
      continue;
    }
    const std::int64_t place = a.positions_T != nullptr ? a.positions_T[t] : a.first_position + t % a.row_length;
    const T* position = static_cast<const T*>(a.position_LD) + place * a.dim;
#pragma omp simd
    for (std::int64_t j = 0; j < a.dim; ++j) store(out, j, load(token, j) + load(position, j));
  }
}

template <typename T>
void layer_norm(const NormArgs& a, std::int64_t begin, std::int64_t end) {
  const auto* gamma = static_cast<const T*>(a.gamma_D);
  const auto* beta = static_cast<const T*>(a.beta_D);
  const auto* bias = static_cast<const T*>(a.y_bias_D);
  for (std::int64_t t = begin; t < end; ++t) {
    const T* x = static_cast<const T*>(a.x_TD) + t * a.dim;
    if (a.y_TD != nullptr) {
      const T* y = static_cast<const T*>(a.y_TD) + t * a.dim;
      T* sum = static_cast<T*>(a.sum_out_TD) + t * a.dim;
      add_rows(sum, x, y, bias, a.dim);
      x = sum;
    }
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (std::int64_t j = 0; j < a.dim; ++j) total += load(x, j);
    const float mean = total / static_cast<float>(a.dim);
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (std::int64_t j = 0; j < a.dim; ++j) {
      const float centred = load(x, j) - mean;
      squares += centred * centred;
    }
    const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(a.dim) + static_cast<float>(a.eps));
    a.mean_T[t] = mean;
    a.rstd_T[t] = rstd;
    T* out = static_cast<T*>(a.out_TD) + t * a.dim;
#pragma omp simd
    for (std::int64_t j = 0; j < a.dim; ++j) store(out, j, (load(x, j) - mean) * rstd * load(gamma, j) + load(beta, j));
  }
}

template <typename T>
void layer_norm_backward(const NormBackwardArgs& a, std::int64_t begin, std::int64_t end) {
  const auto* gamma = static_cast<const T*>(a.gamma_D);
  float* grad_gamma = a.grad_gamma_D;
  float* grad_beta = a.grad_beta_D;
  float* column = a.sum_grad_x_D;
  const float inverse_dim = 1.0f / static_cast<float>(a.dim);
  for (std::int64_t t = begin; t < end; ++t) {
    const T* g = static_cast<const T*>(a.grad_out_TD) + t * a.dim;
    const T* x = static_cast<const T*>(a.x_TD) + t * a.dim;
    const T* residual = a.residual_TD == nullptr ? nullptr : static_cast<const T*>(a.residual_TD) + t * a.dim;
    T* out = static_cast<T*>(a.grad_x_TD) + t * a.dim;
    const float mean = a.mean_T[t];
    const float rstd = a.rstd_T[t];
    float sum_g = 0;
    float sum_gx = 0;
#pragma omp simd reduction(+ : sum_g, sum_gx)
    for (std::int64_t j = 0; j < a.dim; ++j) {
      const float grad = load(g, j);
      const float normal = (load(x, j) - mean) * rstd;
      grad_gamma[j] += grad * normal;
      grad_beta[j] += grad;
      const float scaled = grad * load(gamma, j);
      sum_g += scaled;
      sum_gx += scaled * normal;
    }
    const float mean_g = sum_g * inverse_dim;
    const float mean_gx = sum_gx * inverse_dim;
#pragma omp simd
    for (std::int64_t j = 0; j < a.dim; ++j) {
      const float normal = (load(x, j) - mean) * rstd;
      float v = rstd * (load(g, j) * load(gamma, j) - mean_g - normal * mean_gx);
      if (residual != nullptr) v += load(residual, j);
      store(out, j, v);
    }
    if (column != nullptr) {
#pragma omp simd
      for (std::int64_t j = 0; j < a.dim; ++j) column[j] += load(out, j);
    }
    if (a.recomputed_TD != nullptr) {
      const auto* beta = static_cast<const T*>(a.beta_D);
      T* again = static_cast<T*>(a.recomputed_TD) + t * a.dim;
#pragma omp simd
      for (std::int64_t j = 0; j < a.dim; ++j) {
        store(again, j, (load(x, j) - mean) * rstd * load(gamma, j) + load(beta, j));
      }
    }
  }
}

inline constexpr float kGeluScale = 0.7978845608028654f;  // sqrt(2/pi)
inline constexpr float kGeluCubic = 0.044715f;

inline float gelu_tanh(float x) { return tanh_approx(kGeluScale * (x + kGeluCubic * x * x * x)); }
inline float gelu(float x) { return 0.5f * x * (1.0f + gelu_tanh(x)); }
inline float gelu_derivative(float x, float th) {
  return 0.5f * (1.0f + th) + 0.5f * x * (1.0f - th * th) * kGeluScale * (1.0f + 3.0f * kGeluCubic * x * x);
}

template <typename T>
void bias_gelu(const GeluArgs& a, std::int64_t begin, std::int64_t end) {
  const auto* bias = static_cast<const T*>(a.bias_D);
  for (std::int64_t t = begin; t < end; ++t) {
    T* pre = static_cast<T*>(a.pre_TD) + t * a.dim;
    T* out = static_cast<T*>(a.out_TD) + t * a.dim;
    if (bias != nullptr) {
#pragma omp simd
      for (std::int64_t j = 0; j < a.dim; ++j) store(pre, j, load(pre, j) + load(bias, j));
    }
#pragma omp simd
    for (std::int64_t j = 0; j < a.dim; ++j) store(out, j, gelu(load(pre, j)));
  }
}

template <typename T>
void bias_gelu_backward(const GeluBackwardArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    T* grad = static_cast<T*>(a.grad_TD) + t * a.dim;
    const T* pre = static_cast<const T*>(a.pre_TD) + t * a.dim;
    if (a.recomputed_TD != nullptr) {
      // Both results use the same tanh.
      T* again = static_cast<T*>(a.recomputed_TD) + t * a.dim;
#pragma omp simd
      for (std::int64_t j = 0; j < a.dim; ++j) {
        const float x = load(pre, j);
        const float th = gelu_tanh(x);
        store(again, j, 0.5f * x * (1.0f + th));
        store(grad, j, load(grad, j) * gelu_derivative(x, th));
      }
    } else {
#pragma omp simd
      for (std::int64_t j = 0; j < a.dim; ++j) {
        const float x = load(pre, j);
        store(grad, j, load(grad, j) * gelu_derivative(x, gelu_tanh(x)));
      }
    }
    if (a.sum_grad_D != nullptr) {
#pragma omp simd
      for (std::int64_t j = 0; j < a.dim; ++j) a.sum_grad_D[j] += load(grad, j);
    }
  }
}

template <typename T>
void add_bias(void* x_TD, const void* y_TD, const void* bias_D, std::int64_t dim, std::int64_t begin,
              std::int64_t end) {
  const auto* bias = static_cast<const T*>(bias_D);
  for (std::int64_t t = begin; t < end; ++t) {
    T* x = static_cast<T*>(x_TD) + t * dim;
    const T* y = y_TD == nullptr ? nullptr : static_cast<const T*>(y_TD) + t * dim;
    if (y != nullptr && bias != nullptr) {
#pragma omp simd
      for (std::int64_t j = 0; j < dim; ++j) store(x, j, load(x, j) + (load(y, j) + load(bias, j)));
    } else if (y != nullptr) {
#pragma omp simd
      for (std::int64_t j = 0; j < dim; ++j) store(x, j, load(x, j) + load(y, j));
    } else {
#pragma omp simd
      for (std::int64_t j = 0; j < dim; ++j) store(x, j, load(x, j) + load(bias, j));
    }
  }
}

template <typename T>
void column_sum(const void* x_TD, float* sum, std::int64_t dim, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    const T* x = static_cast<const T*>(x_TD) + t * dim;
#pragma omp simd
    for (std::int64_t j = 0; j < dim; ++j) sum[j] += load(x, j);
  }
}

// Dropout whose mask is a function of keys.

/// splitmix64's finaliser (Steele, Lea, Flood 2014): a counter becomes 64 random bits.
inline std::uint64_t mix64(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

template <typename T>
void dropout(const DropoutArgs& a, std::int64_t begin, std::int64_t end) {
  const float keep_scale = 1.0f / (1.0f - a.probability);
  const auto threshold = static_cast<std::uint64_t>(static_cast<double>(a.probability) * 16777216.0);
  for (std::int64_t t = begin; t < end; ++t) {
    T* x = static_cast<T*>(a.x_TD) + t * a.dim;
    for (std::int64_t j = 0; j < a.dim; ++j) {
      const bool drop = (mix64(a.key_T[t] + static_cast<std::uint64_t>(j)) >> 40) < threshold;
      store(x, j, drop ? 0.0f : load(x, j) * keep_scale);
    }
  }
}
