// Included by isa.cpp inside a per-instruction-set namespace. Softmax of attention (causal; with a window or a
// score cap) and cross-entropy with its gradient: rows [begin, end) of the arrays in kernels.hpp.

template <typename T>
void causal_softmax(const SoftmaxArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    T* row = static_cast<T*>(a.scores) + r * a.leading;
    const std::int64_t count = r % a.row_length + 1;
    float top = load(row, 0);
#pragma omp simd reduction(max : top)
    for (std::int64_t j = 0; j < count; ++j) top = top > load(row, j) ? top : load(row, j);
    float total = 0;
    if constexpr (sizeof(T) == 4) {
#pragma omp simd reduction(+ : total)
      for (std::int64_t j = 0; j < count; ++j) {
        const float e = exp_approx((load(row, j) - top) * a.scale);
        store(row, j, e);
        total += e;
      }
      const float inverse = 1.0f / total;
#pragma omp simd
      for (std::int64_t j = 0; j < count; ++j) store(row, j, load(row, j) * inverse);
    } else {
      // 16-bit storage: exponentials are computed twice rather than rounded twice.
#pragma omp simd reduction(+ : total)
      for (std::int64_t j = 0; j < count; ++j) total += exp_approx((load(row, j) - top) * a.scale);
      const float inverse = 1.0f / total;
#pragma omp simd
      for (std::int64_t j = 0; j < count; ++j) store(row, j, exp_approx((load(row, j) - top) * a.scale) * inverse);
    }
#pragma omp simd
    for (std::int64_t j = count; j < a.row_length; ++j) store(row, j, 0.0f);
  }
}

template <typename T>
void causal_softmax_backward(const SoftmaxBackwardArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    T* grad = static_cast<T*>(a.grad) + r * a.leading;
    const T* p = static_cast<const T*>(a.probs) + r * a.leading;
    const std::int64_t count = r % a.row_length + 1;
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (std::int64_t j = 0; j < count; ++j) dot += load(grad, j) * load(p, j);
#pragma omp simd
    for (std::int64_t j = 0; j < count; ++j) store(grad, j, load(p, j) * (load(grad, j) - dot) * a.scale);
#pragma omp simd
    for (std::int64_t j = count; j < a.row_length; ++j) store(grad, j, 0.0f);
  }
}

template <typename T>
LossSum cross_entropy(const CrossEntropyArgs& a, std::int64_t begin, std::int64_t end) {
  LossSum sum;
  for (std::int64_t t = begin; t < end; ++t) {
    T* row = static_cast<T*>(a.logits_TV) + t * a.padded_vocab;
    const std::int32_t target = a.target_T[t];
    const float weight = a.weight_T != nullptr ? a.weight_T[t] : 1.0f;
    if (target < 0 || weight == 0.0f) {
      if (a.loss_T != nullptr) a.loss_T[t] = 0;
      if (a.write_gradient) {
#pragma omp simd
        for (std::int64_t j = 0; j < a.padded_vocab; ++j) store(row, j, 0.0f);
      }
      continue;
    }
    float top = load(row, 0);
#pragma omp simd reduction(max : top)
    for (std::int64_t j = 0; j < a.vocab; ++j) top = top > load(row, j) ? top : load(row, j);
    const float target_logit = load(row, target);
    // In float32 the exponentials are kept where the logits were and only scaled afterwards; 16-bit storage would round
    // them twice, so they are computed twice.
    const bool keep = sizeof(T) == 4 && a.write_gradient;
    // Partial sums in float32 over 4096 columns, then float64: a vocabulary-long float32 sum would lose digits.
    double total = 0;
    for (std::int64_t first = 0; first < a.vocab; first += 4096) {
      const std::int64_t last = first + 4096 < a.vocab ? first + 4096 : a.vocab;
      float part = 0;
      if (keep) {
#pragma omp simd reduction(+ : part)
        for (std::int64_t j = first; j < last; ++j) {
          const float e = exp_approx(load(row, j) - top);
          store(row, j, e);
          part += e;
        }
      } else {
#pragma omp simd reduction(+ : part)
        for (std::int64_t j = first; j < last; ++j) part += exp_approx(load(row, j) - top);
      }
      total += static_cast<double>(part);
    }
    const double loss = static_cast<double>(weight) *
                        (std::log(total) - (static_cast<double>(target_logit) - static_cast<double>(top)));
    if (a.loss_T != nullptr) a.loss_T[t] = loss;
    sum.nats += loss;
    sum.weight += static_cast<double>(weight);
    if (!a.write_gradient) continue;
    const float scale = a.grad_scale * weight;
    const float factor = static_cast<float>(static_cast<double>(scale) / total);
    if (keep) {
#pragma omp simd
      for (std::int64_t j = 0; j < a.vocab; ++j) store(row, j, load(row, j) * factor);
    } else {
#pragma omp simd
      for (std::int64_t j = 0; j < a.vocab; ++j) store(row, j, exp_approx(load(row, j) - top) * factor);
    }
    store(row, target, exp_approx(target_logit - top) * factor - scale);
#pragma omp simd
    for (std::int64_t j = a.vocab; j < a.padded_vocab; ++j) store(row, j, 0.0f);
  }
  return sum;
}

template <typename T>
void entropies(const EntropyArgs& a, std::int64_t begin, std::int64_t end) {
  // Logits further below the largest one add nothing in float32; those of -inf would add NaN.
  constexpr float kLowest = -100.0f;
  for (std::int64_t t = begin; t < end; ++t) {
    const T* row = static_cast<const T*>(a.logits_TV) + t * a.padded_vocab;
    if (a.target_T[t] < 0) {
      a.entropy_T[t] = 0;
      continue;
    }
    float top = load(row, 0);
#pragma omp simd reduction(max : top)
    for (std::int64_t j = 0; j < a.vocab; ++j) top = top > load(row, j) ? top : load(row, j);
    double total = 0, moment = 0;  // partial sums as in cross_entropy()
    for (std::int64_t first = 0; first < a.vocab; first += 4096) {
      const std::int64_t last = first + 4096 < a.vocab ? first + 4096 : a.vocab;
      float part = 0, part_moment = 0;
#pragma omp simd reduction(+ : part, part_moment)
      for (std::int64_t j = first; j < last; ++j) {
        const float below = load(row, j) - top;
        const float x = below < kLowest ? kLowest : below;
        const float e = exp_approx(x);
        part += e;
        part_moment += e * x;
      }
      total += static_cast<double>(part);
      moment += static_cast<double>(part_moment);
    }
    a.entropy_T[t] = std::log(total) - moment / total;
  }
}

// Softmax of scores [rows, leading] with a window or a score cap; see Band.

/// Columns [first, end) that are not masked in a row.
struct Seen {
  std::int64_t first, end;
  Seen(const ScoreBlock& band, std::int64_t row) {
    const std::int64_t last = band.first_query + row % band.queries;
    end = last + 1 < band.keys ? last + 1 : band.keys;
    first = band.window > 0 && last - band.window + 1 > 0 ? last - band.window + 1 : 0;
  }
};

struct ScaledScore {
  float scale;
  explicit ScaledScore(const ScoreBlock& band) : scale(band.scale) {}
  float operator()(float score) const { return score * scale; }
};

struct CappedScore {
  float inner, cap;
  explicit CappedScore(const ScoreBlock& band) : inner(band.scale / band.softcap), cap(band.softcap) {}
  float operator()(float score) const { return cap * tanh_approx(score * inner); }
};

template <typename T, typename Value>
void band_softmax_rows(const BandSoftmaxArgs& a, const Value& value, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    const T* in = static_cast<const T*>(a.scores) + r * a.block.leading;
    T* out = static_cast<T*>(a.probs) + r * a.block.leading;
    const Seen seen(a.block, r);
    float top = value(load(in, seen.first));
#pragma omp simd reduction(max : top)
    for (std::int64_t j = seen.first; j < seen.end; ++j) {
      const float v = value(load(in, j));
      top = top > v ? top : v;
    }
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (std::int64_t j = seen.first; j < seen.end; ++j) total += exp_approx(value(load(in, j)) - top);
    const float inverse = 1.0f / total;
#pragma omp simd
    for (std::int64_t j = seen.first; j < seen.end; ++j) store(out, j, exp_approx(value(load(in, j)) - top) * inverse);
#pragma omp simd
    for (std::int64_t j = 0; j < seen.first; ++j) store(out, j, 0.0f);
#pragma omp simd
    for (std::int64_t j = seen.end; j < a.block.keys; ++j) store(out, j, 0.0f);
  }
}

template <typename T>
void band_softmax(const BandSoftmaxArgs& a, std::int64_t begin, std::int64_t end) {
  if (a.block.softcap > 0) {
    band_softmax_rows<T>(a, CappedScore(a.block), begin, end);
  } else {
    band_softmax_rows<T>(a, ScaledScore(a.block), begin, end);
  }
}

template <typename T>
void band_softmax_backward(const BandSoftmaxBackwardArgs& a, std::int64_t begin, std::int64_t end) {
  const float inner = a.block.softcap > 0 ? a.block.scale / a.block.softcap : 0.0f;
  for (std::int64_t r = begin; r < end; ++r) {
    T* grad = static_cast<T*>(a.grad) + r * a.block.leading;
    const T* p = static_cast<const T*>(a.probs) + r * a.block.leading;
    const Seen seen(a.block, r);
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (std::int64_t j = seen.first; j < seen.end; ++j) dot += load(grad, j) * load(p, j);
    if (a.scores == nullptr) {
#pragma omp simd
      for (std::int64_t j = seen.first; j < seen.end; ++j)
        store(grad, j, load(p, j) * (load(grad, j) - dot) * a.block.scale);
    } else {
      const T* score = static_cast<const T*>(a.scores) + r * a.block.leading;
#pragma omp simd
      for (std::int64_t j = seen.first; j < seen.end; ++j) {
        const float t = tanh_approx(load(score, j) * inner);
        store(grad, j, load(p, j) * (load(grad, j) - dot) * (1.0f - t * t) * a.block.scale);
      }
    }
#pragma omp simd
    for (std::int64_t j = 0; j < seen.first; ++j) store(grad, j, 0.0f);
#pragma omp simd
    for (std::int64_t j = seen.end; j < a.block.keys; ++j) store(grad, j, 0.0f);
  }
}
