// Included by isa.cpp inside a per-instruction-set namespace. AdamW with moments of 8 bits, block by block.

/// A block's new moments, and the largest of each.
struct EightBitBlock {
  float momentum[kEightBitBlock], variance[kEightBitBlock];
  float largest_momentum, largest_variance;
};

/// First and last element of a block on this rank.
inline std::int64_t block_begin(const AdamW8bitArgs& a, std::int64_t block) {
  return std::max<std::int64_t>(0, block * kEightBitBlock - a.offset);
}
inline std::int64_t block_end(const AdamW8bitArgs& a, std::int64_t block) {
  return std::min(a.elements, (block + 1) * kEightBitBlock - a.offset);
}

inline void new_moments(const AdamW8bitArgs& a, std::int64_t block, EightBitBlock& out) {
  const std::int64_t first = block_begin(a, block), n = block_end(a, block) - first;
  const float scale1 = a.absmax1[block], scale2 = a.absmax2[block];
  float largest_momentum = 0, largest_variance = 0;
#pragma omp simd reduction(max : largest_momentum, largest_variance)
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = a.grad[first + i] * a.grad_scale;
    const float m = a.code1[a.state1[first + i]] * scale1 * a.beta1 + a.rest1 * g;
    const float v = a.code2[a.state2[first + i]] * scale2 * a.beta2 + a.rest2 * (g * g);
    out.momentum[i] = m;
    out.variance[i] = v;
    largest_momentum = std::max(largest_momentum, std::fabs(m));
    largest_variance = std::max(largest_variance, v);
  }
  out.largest_momentum = largest_momentum;
  out.largest_variance = largest_variance;
}

inline void encode(std::uint8_t* to, const float* from, std::int64_t n, float largest, const std::uint8_t* codes) {
  if (largest == 0.0f) {
    std::memset(to, 0, static_cast<std::size_t>(n));
    return;
  }
  const float inverse = 1.0f / largest;
  std::int32_t bins[kEightBitBlock];
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = std::min(1.0f, std::max(-1.0f, from[i] * inverse));
#ifdef __FMA__
    bins[i] = static_cast<std::int32_t>(std::fma((x + 1.0f) * 0.5f, 65535.0f, 0.5f));
#else  // the same: a product of two floats is exact in double
    const double bin = static_cast<double>((x + 1.0f) * 0.5f) * 65535.0 + 0.5;
    bins[i] = static_cast<std::int32_t>(static_cast<float>(bin));
#endif
  }
  for (std::int64_t i = 0; i < n; ++i) to[i] = codes[bins[i]];
}

/// Largest new moments of a block's elements here.
inline void adamw_8bit_largest(const AdamW8bitArgs& a, std::int64_t block, double* momentum_and_variance) {
  EightBitBlock moments;
  new_moments(a, block, moments);
  momentum_and_variance[0] = static_cast<double>(moments.largest_momentum);
  momentum_and_variance[1] = static_cast<double>(moments.largest_variance);
}

inline void adamw_8bit(const AdamW8bitArgs& a, std::int64_t begin, std::int64_t end) {
  EightBitBlock moments;
  for (std::int64_t block = begin; block < end; ++block) {
    new_moments(a, block, moments);
    const std::int64_t first = block_begin(a, block), n = block_end(a, block) - first;
    if (a.edges != nullptr && (block == 0 || block + 1 == a.blocks)) {
      const double* edge = a.edges + (block == 0 ? 0 : 2);
      moments.largest_momentum = static_cast<float>(edge[0]);
      moments.largest_variance = static_cast<float>(edge[1]);
    }
    float* param = a.param + first;
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      const float denominator = std::sqrt(moments.variance[i]) / a.denom_correction + a.eps;
      param[i] = param[i] * a.weight_decay_factor - a.step_size * moments.momentum[i] / denominator;
    }
    encode(a.state1 + first, moments.momentum, n, moments.largest_momentum, a.codes1);
    encode(a.state2 + first, moments.variance, n, moments.largest_variance, a.codes2);
    a.absmax1[block] = moments.largest_momentum;
    a.absmax2[block] = moments.largest_variance;
  }
}
