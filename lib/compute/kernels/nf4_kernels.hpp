// Included by isa.cpp inside a per-instruction-set namespace. Weights of 4 bits, block by block.

/// A block's elements: the last one of a matrix may have fewer.
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
    for (std::int64_t i = 0; i < kNf4Block_bytes; ++i)  // two values at a time: a loop of its own, for lookups
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
