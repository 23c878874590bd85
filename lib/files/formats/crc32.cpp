#include "lib/files/formats/crc32.hpp"

#include <zlib.h>

#include <algorithm>
#include <limits>

#if defined(__x86_64__) && defined(__GNUC__)
#define FSDP_CRC32_FOLDING 1
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__GNUC__) && !defined(__AARCH64EB__)
#define FSDP_CRC32_INSTRUCTIONS 1
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include <cstring>
#endif

namespace fsdp {
namespace {

std::uint32_t crc32_zlib(std::uint32_t crc, std::span<const std::byte> data) {
  constexpr std::size_t step = 1u << 30;  // zlib counts in 32 bits
  for (std::size_t done = 0; done < data.size(); done += step) {
    const auto piece = data.subspan(done, std::min(step, data.size() - done));
    crc = static_cast<std::uint32_t>(
        ::crc32(crc, reinterpret_cast<const Bytef*>(piece.data()), static_cast<uInt>(piece.size())));
  }
  return crc;
}

#ifdef FSDP_CRC32_FOLDING
// Folding by carry-less multiplication: V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
// Instruction", Intel 2009. The constants are its k1..k5, the polynomial and its inverse, for the reflected CRC-32.

#define FSDP_FOLDING_TARGET __attribute__((target("pclmul,sse4.1")))

FSDP_FOLDING_TARGET inline __m128i fold(__m128i value, __m128i next, __m128i constants) {
  return _mm_xor_si128(
      next, _mm_xor_si128(_mm_clmulepi64_si128(value, constants, 0x00), _mm_clmulepi64_si128(value, constants, 0x11)));
}

FSDP_FOLDING_TARGET inline __m128i load(const std::byte* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}

FSDP_FOLDING_TARGET inline std::uint32_t reduce_to_32(__m128i value) {
  const __m128i low_32 = _mm_setr_epi32(~0, 0, ~0, 0);
  const __m128i k3_k4 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
  const __m128i k5 = _mm_set_epi64x(0, 0x0163cd6124);
  const __m128i polynomial = _mm_set_epi64x(0x01f7011641, 0x01db710641);
  value = _mm_xor_si128(_mm_srli_si128(value, 8), _mm_clmulepi64_si128(value, k3_k4, 0x10));
  value = _mm_xor_si128(_mm_srli_si128(value, 4), _mm_clmulepi64_si128(_mm_and_si128(value, low_32), k5, 0x00));
  __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(value, low_32), polynomial, 0x10);
  quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_32), polynomial, 0x00);
  return static_cast<std::uint32_t>(_mm_extract_epi32(_mm_xor_si128(value, quotient), 1));
}

/// `data` has at least 64 bytes, in a multiple of 16. The CRC is passed and returned inverted.
FSDP_FOLDING_TARGET std::uint32_t crc32_folding(std::uint32_t inverted_crc, std::span<const std::byte> data) {
  const __m128i k1_k2 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
  const __m128i k3_k4 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
  const std::byte* at = data.data();
  std::size_t left = data.size() - 64;
  __m128i a = _mm_xor_si128(load(at), _mm_cvtsi32_si128(static_cast<int>(inverted_crc)));
  __m128i b = load(at + 16), c = load(at + 32), d = load(at + 48);
  for (at += 64; left >= 64; left -= 64, at += 64) {
    a = fold(a, load(at), k1_k2);
    b = fold(b, load(at + 16), k1_k2);
    c = fold(c, load(at + 32), k1_k2);
    d = fold(d, load(at + 48), k1_k2);
  }
  a = fold(a, b, k3_k4);
  a = fold(a, c, k3_k4);
  a = fold(a, d, k3_k4);
  for (; left >= 16; left -= 16, at += 16) a = fold(a, load(at), k3_k4);
  return reduce_to_32(a);
}

bool can_fold() {
  static const bool can = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
  return can;
}
#endif

#ifdef FSDP_CRC32_INSTRUCTIONS
/// `data` has a multiple of 8 bytes. The CRC is passed and returned inverted. The CRC instructions are optional in
/// ARMv8.0, and zlib may be built without them.
__attribute__((target("+crc"))) std::uint32_t crc32_by_words(std::uint32_t inverted_crc,
                                                             std::span<const std::byte> data) {
  for (std::size_t at = 0; at < data.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data.data() + at, 8);
    inverted_crc = __crc32d(inverted_crc, word);
  }
  return inverted_crc;
}

bool has_instructions() {
  static const bool has = (::getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
  return has;
}
#endif

}  // namespace

std::uint32_t crc32(std::uint32_t crc, std::span<const std::byte> data) {
#ifdef FSDP_CRC32_FOLDING
  if (data.size() >= 64 && can_fold()) {
    const std::size_t folded = data.size() / 16 * 16;
    crc = ~crc32_folding(~crc, data.first(folded));
    data = data.subspan(folded);
  }
#endif
#ifdef FSDP_CRC32_INSTRUCTIONS
  if (data.size() >= 8 && has_instructions()) {
    const std::size_t whole_words = data.size() / 8 * 8;
    crc = ~crc32_by_words(~crc, data.first(whole_words));
    data = data.subspan(whole_words);
  }
#endif
  return crc32_zlib(crc, data);
}

std::uint32_t crc32_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t length_b_bytes) {
  static_assert(std::numeric_limits<z_off_t>::max() >= std::numeric_limits<std::int64_t>::max());
  return static_cast<std::uint32_t>(::crc32_combine(crc_a, crc_b, static_cast<z_off_t>(length_b_bytes)));
}

}  // namespace fsdp
