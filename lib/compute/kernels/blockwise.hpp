// Included by isa.cpp inside a per-instruction-set namespace. AdamW and Lion with quantized moments, block by
// block.

/// New moments of this rank's part of a block, and their largest absolute values.
struct BlockMoments {
  float first[kLargestMomentBlock], second[kLargestMomentBlock];
  float largest_first, largest_second;
};

/// First element of a block on this rank, and the end.
inline std::int64_t block_begin(const BlockwiseArgs& a, std::int64_t block) {
  return std::max<std::int64_t>(0, block * a.block - a.offset);
}
inline std::int64_t block_end(const BlockwiseArgs& a, std::int64_t block) {
  return std::min(a.elements, (block + 1) * a.block - a.offset);
}

/// Table lookups in a loop of their own, since loops with lookups do not vectorize. \param first  even for packed codes
inline void decode(const Moment& moment, std::int64_t first, std::int64_t n, float* out) {
  const float* values = moment.code->values.data();
  if (moment.code->packed) {
    const std::uint8_t* codes = moment.codes + first / 2;
    for (std::int64_t i = 0; i < n / 2; ++i) {
      out[2 * i] = values[codes[i] >> 4];
      out[2 * i + 1] = values[codes[i] & 15];
    }
    return;
  }
  const std::uint8_t* codes = moment.codes + first;
  for (std::int64_t i = 0; i < n; ++i) out[i] = values[codes[i]];
}

inline void new_moments(const BlockwiseArgs& a, std::int64_t block, BlockMoments& out) {
  const std::int64_t begin = block_begin(a, block), n = std::min(block_end(a, block) - begin, kLargestMomentBlock);
  const float grad_scale = a.grad_scale, beta1 = a.beta1, beta2 = a.beta2, rest1 = a.rest1, rest2 = a.rest2;
  const float* grad = a.grad + begin;
  float* first = out.first;
  float* second = out.second;
  float largest_first = 0, largest_second = 0;
  decode(a.first, begin, n, first);
  const float scale1 = a.first.scales[block];
  if (a.lion) {  // Lion steps by an average with beta1 and keeps one with beta2
#pragma omp simd reduction(max : largest_first)
    for (std::int64_t i = 0; i < n; ++i) {
      const float g = grad[i] * grad_scale, m = first[i] * scale1;
      second[i] = m * beta1 + rest1 * g;
      first[i] = m * beta2 + rest2 * g;
      largest_first = std::max(largest_first, std::fabs(first[i]));
    }
  } else {
    decode(a.second, begin, n, second);
    const float scale2 = a.second.scales[block];
#pragma omp simd reduction(max : largest_first, largest_second)
    for (std::int64_t i = 0; i < n; ++i) {
      const float g = grad[i] * grad_scale;
      const float m = first[i] * scale1 * beta1 + rest1 * g;
      const float v = second[i] * scale2 * beta2 + rest2 * (g * g);
      first[i] = m;
      second[i] = v;
      largest_first = std::max(largest_first, std::fabs(m));
      largest_second = std::max(largest_second, v);
    }
  }
  out.largest_first = largest_first;
  out.largest_second = largest_second;
}

/// Normalized values in [-1, 1] and the index (bin or cell) of each in the lookup table.
struct Scaled {
  float values[kLargestMomentBlock];
  std::int32_t cells[kLargestMomentBlock];
};

/// Clamps to [-1, 1] without std::min, whose references prevent vectorization. NaN (from an infinite scale) becomes 1.
inline float clamped(float x) {
  x = x < 1.0f ? x : 1.0f;
  return x > -1.0f ? x : -1.0f;
}

/// Writes the bin of each value.
inline void find_bins(const float* from, std::int64_t n, float scale, std::int32_t* bins) {
  const float inverse = 1.0f / scale;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float half = (clamped(from[i] * inverse) + 1.0f) * 0.5f;
#ifdef FSDP_KERNEL_FMA
    bins[i] = static_cast<std::int32_t>(std::fma(half, 65535.0f, 0.5f));
#else  // the same: a product of two floats is exact in double
    bins[i] = static_cast<std::int32_t>(static_cast<float>(static_cast<double>(half) * 65535.0 + 0.5));
#endif
  }
}

inline void find_cells(const MomentCode& code, const float* from, std::int64_t n, float scale, Scaled& out) {
  const std::int32_t first = code.first, negative = code.negative;
  const int shift = code.shift;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out.values[i] = clamped(from[i] / scale);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<std::int32_t>(out.values[i]);
    const std::int32_t cell = std::max(0, ((bits & 0x7fffffff) >> shift) - first);
    out.cells[i] = cell + (negative & (bits >> 31));
  }
}

/// Branch-free, since a branch could not be predicted.
inline std::uint8_t code_of(const MomentCode::Cell* cells, const Scaled& scaled, std::int64_t i) {
  const auto& cell = cells[scaled.cells[i]];
  const int reached = scaled.values[i] >= cell.threshold ? 1 : 0;
  return static_cast<std::uint8_t>(cell.below + (-reached & cell.rise));
}

inline void encode(const Moment& moment, std::int64_t first, std::int64_t n, const float* from, float scale) {
  const auto& code = *moment.code;
  std::uint8_t* to = moment.codes + (code.packed ? first / 2 : first);
  if (scale == 0.0f) {
    std::fill(to, to + (code.packed ? n / 2 : n), std::uint8_t{0});
    return;
  }
  Scaled scaled;
  if (code.bins != nullptr) {
    find_bins(from, n, scale, scaled.cells);
    for (std::int64_t i = 0; i < n; ++i) to[i] = code.bins[scaled.cells[i]];
    return;
  }
  find_cells(code, from, n, scale, scaled);
  const auto* cells = code.cells.data();
  if (!code.packed) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = code_of(cells, scaled, i);
    return;
  }
  for (std::int64_t i = 0; i < n / 2; ++i)
    to[i] = static_cast<std::uint8_t>((code_of(cells, scaled, 2 * i) << 4) | code_of(cells, scaled, 2 * i + 1));
}

/// Writes the largest new moments of this rank's part of a block. \param first_and_second  [2]
inline void blockwise_largest(const BlockwiseArgs& a, std::int64_t block, double* first_and_second) {
  BlockMoments moments;
  new_moments(a, block, moments);
  first_and_second[0] = static_cast<double>(moments.largest_first);
  first_and_second[1] = static_cast<double>(moments.largest_second);
}

inline void step_block(const BlockwiseArgs& a, const BlockMoments& moments, float* param, std::int64_t n) {
  const float keep = a.weight_decay_factor, step = a.step_size, eps = a.eps;
  if (a.lion) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      const float c = moments.second[i];
      const float sign = static_cast<float>(c > 0.0f) - static_cast<float>(c < 0.0f);
      param[i] = param[i] * keep - step * sign;
    }
    return;
  }
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i)
    param[i] = param[i] * keep - step * moments.first[i] / (std::sqrt(moments.second[i]) + eps);
}

/// Prefetches elements [first, first + n), each of `bytes` bytes.
inline void prefetch(const void* data, std::int64_t first, std::int64_t n, std::int64_t bytes) {
  const char* at = static_cast<const char*>(data) + first * bytes;
  for (std::int64_t line = 0; line < n * bytes; line += 64) __builtin_prefetch(at + line);
}

/// A block computes longer than processors look ahead.
inline void prefetch_block(const BlockwiseArgs& a, std::int64_t block) {
  const std::int64_t first = block_begin(a, block), n = block_end(a, block) - first;
  prefetch(a.grad, first, n, sizeof(float));
  prefetch(a.param, first, n, sizeof(float));
  prefetch(a.first.codes, a.first.code->packed ? first / 2 : first, n, 1);
  if (!a.lion) prefetch(a.second.codes, a.second.code->packed ? first / 2 : first, n, 1);
}

inline void blockwise(const BlockwiseArgs& a, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kAhead = 4;
  BlockMoments moments;
  const auto store = [&](const Moment& moment, std::int64_t block, const float* values, float largest) {
    const float scale = std::max(largest, moment.code->least_scale);
    const std::int64_t first = block_begin(a, block);
    encode(moment, first, block_end(a, block) - first, values, scale);
    moment.scales[block] = scale;
  };
  for (std::int64_t block = begin; block < end; ++block) {
    if (block + kAhead < end) prefetch_block(a, block + kAhead);
    new_moments(a, block, moments);
    const std::int64_t first = block_begin(a, block);
    if (a.edges != nullptr && (block == 0 || block + 1 == a.blocks)) {
      const double* edge = a.edges + (block == 0 ? 0 : 2);
      moments.largest_first = static_cast<float>(edge[0]);
      moments.largest_second = static_cast<float>(edge[1]);
    }
    step_block(a, moments, a.param + first, block_end(a, block) - first);
    store(a.first, block, moments.first, moments.largest_first);
    if (!a.lion) store(a.second, block, moments.second, moments.largest_second);
  }
}
