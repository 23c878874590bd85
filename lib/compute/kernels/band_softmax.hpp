// Included by isa.cpp inside a per-instruction-set namespace. Softmax of scores that see a band of keys, perhaps
// capped.

/// Columns [first, end) that a row sees.
struct Seen {
  std::int64_t first, end;
  Seen(const Band& band, std::int64_t row) {
    const std::int64_t last = band.first_query + row % band.queries;
    end = last + 1 < band.keys ? last + 1 : band.keys;
    first = band.window > 0 && last - band.window + 1 > 0 ? last - band.window + 1 : 0;
  }
};

struct ScaledScore {
  float scale;
  explicit ScaledScore(const Band& band) : scale(band.scale) {}
  float operator()(float score) const { return score * scale; }
};

struct CappedScore {
  float inner, cap;
  explicit CappedScore(const Band& band) : inner(band.scale / band.softcap), cap(band.softcap) {}
  float operator()(float score) const { return cap * tanh_approx(score * inner); }
};

template <typename T, typename Value>
void band_softmax_rows(const BandSoftmaxArgs& a, const Value& value, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    const T* in = static_cast<const T*>(a.scores) + r * a.band.leading;
    T* out = static_cast<T*>(a.probs) + r * a.band.leading;
    const Seen seen(a.band, r);
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
    for (std::int64_t j = seen.end; j < a.band.keys; ++j) store(out, j, 0.0f);
  }
}

template <typename T>
void band_softmax(const BandSoftmaxArgs& a, std::int64_t begin, std::int64_t end) {
  if (a.band.softcap > 0) {
    band_softmax_rows<T>(a, CappedScore(a.band), begin, end);
  } else {
    band_softmax_rows<T>(a, ScaledScore(a.band), begin, end);
  }
}

template <typename T>
void band_softmax_backward(const BandSoftmaxBackwardArgs& a, std::int64_t begin, std::int64_t end) {
  const float inner = a.band.softcap > 0 ? a.band.scale / a.band.softcap : 0.0f;
  for (std::int64_t r = begin; r < end; ++r) {
    T* grad = static_cast<T*>(a.grad) + r * a.band.leading;
    const T* p = static_cast<const T*>(a.probs) + r * a.band.leading;
    const Seen seen(a.band, r);
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (std::int64_t j = seen.first; j < seen.end; ++j) dot += load(grad, j) * load(p, j);
    if (a.scores == nullptr) {
#pragma omp simd
      for (std::int64_t j = seen.first; j < seen.end; ++j)
        store(grad, j, load(p, j) * (load(grad, j) - dot) * a.band.scale);
    } else {
      const T* score = static_cast<const T*>(a.scores) + r * a.band.leading;
#pragma omp simd
      for (std::int64_t j = seen.first; j < seen.end; ++j) {
        const float t = tanh_approx(load(score, j) * inner);
        store(grad, j, load(p, j) * (load(grad, j) - dot) * (1.0f - t * t) * a.band.scale);
      }
    }
#pragma omp simd
    for (std::int64_t j = 0; j < seen.first; ++j) store(grad, j, 0.0f);
#pragma omp simd
    for (std::int64_t j = seen.end; j < a.band.keys; ++j) store(grad, j, 0.0f);
  }
}
