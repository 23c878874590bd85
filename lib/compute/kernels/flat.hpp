// Included by isa.cpp inside a per-instruction-set namespace. Passes over flat arrays: gradients and casts.

template <typename T>
double sum_sources(float* out, const void* const* sources, int num_sources, bool accumulate, std::int64_t begin,
                   std::int64_t end) {
  double squares = 0;
  constexpr std::int64_t kBlock = 2048;  // stays in the first-level cache while the sources are added one by one
  for (std::int64_t first = begin; first < end; first += kBlock) {
    const std::int64_t last = first + kBlock < end ? first + kBlock : end;
    for (int s = 0; s < num_sources; ++s) {
      const T* in = static_cast<const T*>(sources[s]);
      if (s == 0 && !accumulate) {
#pragma omp simd
        for (std::int64_t i = first; i < last; ++i) out[i] = load(in, i);
      } else {
#pragma omp simd
        for (std::int64_t i = first; i < last; ++i) out[i] += load(in, i);
      }
    }
    double part = 0;
#pragma omp simd reduction(+ : part)
    for (std::int64_t i = first; i < last; ++i) part += static_cast<double>(out[i]) * static_cast<double>(out[i]);
    squares += part;
  }
  return squares;
}

template <typename T>
void narrow(void* out, const float* in, std::int64_t begin, std::int64_t end) {
  T* to = static_cast<T*>(out);
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) store(to, i, in[i]);
}

template <typename T>
void upcast_add(float* out, const void* in, std::int64_t begin, std::int64_t end) {
  const T* from = static_cast<const T*>(in);
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) out[i] += load(from, i);
}

inline double sum_squares(const float* x, std::int64_t begin, std::int64_t end) {
  double total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t i = begin; i < end; ++i) total += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return total;
}

inline bool has_non_finite(const float* x, std::int64_t begin, std::int64_t end) {
  std::uint32_t bad = 0;
#pragma omp simd reduction(| : bad)
  for (std::int64_t i = begin; i < end; ++i) {
    bad |= static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(x[i]) & 0x7f800000u) == 0x7f800000u);
  }
  return bad != 0;
}

/// sum[j] = x[j] + (y[j] + bias[j]); bias may be null. What a norm with a residual begins with.
template <typename T>
inline void add_rows(T* sum, const T* x, const T* y, const T* bias, std::int64_t dim) {
  if (bias != nullptr) {
#pragma omp simd
    for (std::int64_t j = 0; j < dim; ++j) store(sum, j, load(x, j) + (load(y, j) + load(bias, j)));
  } else {
#pragma omp simd
    for (std::int64_t j = 0; j < dim; ++j) store(sum, j, load(x, j) + load(y, j));
  }
}
