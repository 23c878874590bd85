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
  const std::int64_t first = block_begin(a, block), n = std::min(block_end(a, block) - first, kEightBitBlock);
  const float scale1 = a.absmax1[block], scale2 = a.absmax2[block];
  const float grad_scale = a.grad_scale, beta1 = a.beta1, beta2 = a.beta2, rest1 = a.rest1, rest2 = a.rest2;
  const float *code1 = a.code1, *code2 = a.code2, *grad = a.grad + first;
  const std::uint8_t *state1 = a.state1 + first, *state2 = a.state2 + first;
  float* momentum = out.momentum;
  float* variance = out.variance;
  float largest_momentum = 0, largest_variance = 0;
  for (std::int64_t i = 0; i < n; ++i) {  // lookups by themselves: a loop with them does not become vectors
    momentum[i] = code1[state1[i]];
    variance[i] = code2[state2[i]];
  }
#pragma omp simd reduction(max : largest_momentum, largest_variance)
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = grad[i] * grad_scale;
    const float m = momentum[i] * scale1 * beta1 + rest1 * g;
    const float v = variance[i] * scale2 * beta2 + rest2 * (g * g);
    momentum[i] = m;
    variance[i] = v;
    largest_momentum = std::max(largest_momentum, std::fabs(m));
    largest_variance = std::max(largest_variance, v);
  }
  out.largest_momentum = largest_momentum;
  out.largest_variance = largest_variance;
}

inline void encode(std::uint8_t* to, const float* from, std::int64_t n, float largest, const std::uint8_t* codes) {
  if (largest == 0.0f) {
    std::fill(to, to + n, std::uint8_t{0});
    return;
  }
  const float inverse = 1.0f / largest;
  std::int32_t bins[kEightBitBlock];
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    float x = from[i] * inverse;  // not by std::min, whose references do not become vectors
    x = x < 1.0f ? x : 1.0f;      // a NaN, of an infinite largest value, becomes 1
    x = x > -1.0f ? x : -1.0f;
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

inline void adamw_block(const AdamW8bitArgs& a, const EightBitBlock& moments, float* param, std::int64_t n) {
  const float correction = a.denom_correction, eps = a.eps, keep = a.weight_decay_factor, step = a.step_size;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float denominator = std::sqrt(moments.variance[i]) / correction + eps;
    param[i] = param[i] * keep - step * moments.momentum[i] / denominator;
  }
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
    adamw_block(a, moments, a.param + first, n);
    encode(a.state1 + first, moments.momentum, n, moments.largest_momentum, a.codes1);
    encode(a.state2 + first, moments.variance, n, moments.largest_variance, a.codes2);
    a.absmax1[block] = moments.largest_momentum;
    a.absmax2[block] = moments.largest_variance;
  }
}
