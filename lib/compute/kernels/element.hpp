// Included by isa.cpp inside a per-instruction-set namespace. Loads and stores that convert to float32, and exp.
#include <bit>
#include <cmath>
#include <cstdint>

struct Bf16 {
  std::uint16_t bits;
};
#if defined(__aarch64__)
using Half = __fp16;  // GCC supports _Float16 in C++ on AArch64 only from version 13 on; the format is the same
#else
using Half = _Float16;
#endif
struct F16 {
  Half value;
};

inline float load(const float* p, std::int64_t i) { return p[i]; }
inline float load(const Bf16* p, std::int64_t i) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(p[i].bits) << 16);
}
inline float load(const F16* p, std::int64_t i) { return static_cast<float>(p[i].value); }

inline void store(float* p, std::int64_t i, float v) { p[i] = v; }
inline void store(Bf16* p, std::int64_t i, float v) {
  const auto u = std::bit_cast<std::uint32_t>(v);
  // Round to nearest even; a NaN keeps its sign and becomes quiet.
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  p[i].bits = static_cast<std::uint16_t>(nan ? ((u >> 16) | 0x40u) : rounded);
}
inline void store(F16* p, std::int64_t i, float v) { p[i].value = static_cast<Half>(v); }

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define FSDP_KERNEL_FMA 1
#endif

/// a b - c d with a fused multiply-add for a b if the processor has one. Left alone, the compiler may fuse either
/// product, and another one in the remainder of a vectorized loop: results would then depend on where a tensor is
/// split.
inline float difference_of_products(float a, float b, float c, float d) {
#ifdef FSDP_KERNEL_FMA
  return std::fma(a, b, -(c * d));
#else
  return a * b - c * d;
#endif
}

/// e^x within 2 ulp for x in [-87, 88]; below it underflows to about 1e-38, which every caller may treat as 0.
/// Cephes' polynomial; auto-vectorizes, unlike std::exp.
inline float exp_approx(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float n = std::nearbyint(x * 1.44269504088896341f);
  float r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const auto exponent = static_cast<std::uint32_t>(static_cast<std::int32_t>(n) + 127) << 23;
  return p * std::bit_cast<float>(exponent);
}

/// tanh(x) with absolute error below 2e-7 (all that GELU needs).
inline float tanh_approx(float x) { return 1.0f - 2.0f / (exp_approx(2.0f * x) + 1.0f); }
