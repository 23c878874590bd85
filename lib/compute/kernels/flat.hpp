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

/// sum[j] = x[j] + (y[j] + bias[j]); bias may be null. The first step of a norm with a residual.
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

// NF4 weights, block by block.

/// Elements of a block; the last block of a matrix may have fewer than kNf4Block.
inline std::int64_t nf4_elements(const Nf4Args& a, std::int64_t block) {
  return std::min(kNf4Block, a.elements - block * kNf4Block);
}

inline void quantize_nf4(const Nf4QuantizeArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t block = begin; block < end; ++block) {
    const std::int64_t n = std::min(kNf4Block, a.elements - block * kNf4Block);
    const float* x = a.values + block * kNf4Block;
    float largest = 0;
#pragma omp simd reduction(max : largest)
    for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
    a.absmax[block] = largest;
    const float inverse = largest > 0 ? 1.0f / largest : 0.0f;
    std::int32_t codes[kNf4Block];
    std::fill(codes, codes + kNf4Block, kNf4Zero);
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      const float scaled = x[i] * inverse;
      std::int32_t code = 0;
      for (int t = 0; t < 15; ++t) code += scaled > kNf4Thresholds[t] ? 1 : 0;
      codes[i] = code;
    }
    std::uint8_t* packed = a.packed + block * kNf4Block_bytes;
    for (std::int64_t i = 0; i < kNf4Block_bytes; ++i)
      packed[i] = static_cast<std::uint8_t>((codes[2 * i] << 4) | codes[2 * i + 1]);
  }
}

template <typename T>
inline void dequantize_nf4(const Nf4Args& a, std::int64_t begin, std::int64_t end) {
  float values[kNf4Block];
  for (std::int64_t block = begin; block < end; ++block) {
    const std::uint8_t* packed = a.packed + block * kNf4Block_bytes;
    for (std::int64_t i = 0; i < kNf4Block_bytes;
         ++i)  // two values per lookup; lookups have a loop of their own, since they do not vectorize
      std::memcpy(values + 2 * i, a.pairs + 2 * packed[i], 2 * sizeof(float));
    const float scale = a.absmax[block];
    T* out = static_cast<T*>(a.out) + block * kNf4Block;
    const std::int64_t n = nf4_elements(a, block);
    if (n == kNf4Block) {
#pragma omp simd
      for (std::int64_t i = 0; i < kNf4Block; ++i) store(out, i, values[i] * scale);
    } else {
      for (std::int64_t i = 0; i < n; ++i) store(out, i, values[i] * scale);
    }
  }
}
