// Source of the layouts: ggml-common.h (block_q4_0, ..., block_q6_K) and gguf-py, quants.py.
#include "lib/checkpoints/programs/gguf/gguf_blocks.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

#include "lib/base/types/error.hpp"
#include "lib/base/types/half_float.hpp"

namespace fsdp {
namespace {

using Bytes = const std::uint8_t*;

constexpr int kSmall = 32;   // elements of a block of the older types
constexpr int kLarge = 256;  // of the K types
constexpr int kGroup = 16;   // elements with one scale in Q2_K, Q3_K and Q6_K

float half(Bytes at) { return half_to_float(static_cast<std::uint16_t>(at[0] | at[1] << 8)); }

/// Codes of 4 bits: the low halves of 16 bytes, then the high halves.
int nibble(Bytes codes, int i) { return i < kSmall / 2 ? codes[i] & 15 : codes[i - kSmall / 2] >> 4; }

/// The fifth bits of 32 codes.
int fifth_bit(Bytes bits, int i) { return (bits[i / 8] >> i % 8 & 1) << 4; }

void q4_0(Bytes block, float* out) {
  const float scale = half(block);
  for (int i = 0; i < kSmall; ++i) out[i] = scale * static_cast<float>(nibble(block + 2, i) - 8);
}

void q4_1(Bytes block, float* out) {
  const float scale = half(block), least = half(block + 2);
  for (int i = 0; i < kSmall; ++i) out[i] = scale * static_cast<float>(nibble(block + 4, i)) + least;
}

void q5_0(Bytes block, float* out) {
  const float scale = half(block);
  for (int i = 0; i < kSmall; ++i)
    out[i] = scale * static_cast<float>((nibble(block + 6, i) | fifth_bit(block + 2, i)) - 16);
}

void q5_1(Bytes block, float* out) {
  const float scale = half(block), least = half(block + 2);
  for (int i = 0; i < kSmall; ++i)
    out[i] = scale * static_cast<float>(nibble(block + 8, i) | fifth_bit(block + 4, i)) + least;
}

void q8_0(Bytes block, float* out) {
  const float scale = half(block);
  for (int i = 0; i < kSmall; ++i) out[i] = scale * static_cast<float>(static_cast<std::int8_t>(block[2 + i]));
}

/// The scale and the minimum of a group of 32 in Q4_K and Q5_K: 6 bits each, in 12 bytes.
struct GroupScale {
  int scale, least;
};
GroupScale group_scale(Bytes scales, int group) {
  if (group < 4) return {scales[group] & 63, scales[group + 4] & 63};
  return {(scales[group + 4] & 15) | scales[group - 4] >> 6 << 4, scales[group + 4] >> 4 | scales[group] >> 6 << 4};
}

/// \param fifth  32 bytes with bit g of the codes of group g; null: codes have 4 bits
void q4_or_5_k(Bytes block, Bytes fifth, Bytes codes, float* out) {
  const float scale = half(block), least = half(block + 2);
  for (int group = 0; group < kLarge / kSmall; ++group) {
    const auto of_group = group_scale(block + 4, group);
    const float step = scale * static_cast<float>(of_group.scale), from = least * static_cast<float>(of_group.least);
    for (int i = 0; i < kSmall; ++i) {
      int code = codes[group / 2 * kSmall + i] >> (group % 2 * 4) & 15;
      if (fifth != nullptr) code |= (fifth[i] >> group & 1) << 4;
      out[group * kSmall + i] = step * static_cast<float>(code) - from;
    }
  }
}

void q4_k(Bytes block, float* out) { q4_or_5_k(block, nullptr, block + 16, out); }
void q5_k(Bytes block, float* out) { q4_or_5_k(block, block + 16, block + 48, out); }

/// Codes of 2 bits: element i of half h lies in byte i % 32 of the half's 32 bytes, at bit i / 32 * 2.
int two_bits(Bytes codes, int element) {
  const int in_half = element % 128;
  return codes[element / 128 * kSmall + in_half % kSmall] >> (in_half / kSmall * 2) & 3;
}

void q2_k(Bytes block, float* out) {
  const Bytes scales = block, codes = block + 16;
  const float scale = half(block + 80), least = half(block + 82);
  for (int i = 0; i < kLarge; ++i) {
    const int of_group = scales[i / kGroup];
    out[i] = scale * static_cast<float>(of_group & 15) * static_cast<float>(two_bits(codes, i)) -
             least * static_cast<float>(of_group >> 4);
  }
}

/// Scales of 6 bits: the low 4 in 8 bytes, the high 2 in 4 bytes.
int q3_scale(Bytes scales, int group) {
  const int low = group < 8 ? scales[group] & 15 : scales[group - 8] >> 4;
  return (low | (scales[8 + group % 4] >> (group / 4 * 2) & 3) << 4) - 32;
}

void q3_k(Bytes block, float* out) {
  const Bytes high = block, codes = block + 32, scales = block + 96;
  const float scale = half(block + 108);
  for (int i = 0; i < kLarge; ++i) {
    const int code = two_bits(codes, i) - ((high[i % kSmall] >> (i / kSmall) & 1) != 0 ? 0 : 4);
    out[i] = scale * static_cast<float>(q3_scale(scales, i / kGroup)) * static_cast<float>(code);
  }
}

void q6_k(Bytes block, float* out) {
  const Bytes low = block, high = block + 128, scales = block + 192;
  const float scale = half(block + 208);
  for (int i = 0; i < kLarge; ++i) {
    const int in_half = i % 128;
    const int low_bits = low[i / 128 * 64 + in_half % 64] >> (in_half / 64 * 4) & 15;
    const int code = (low_bits | two_bits(high, i) << 4) - 32;
    out[i] = scale * static_cast<float>(static_cast<std::int8_t>(scales[i / kGroup])) * static_cast<float>(code);
  }
}

struct Reader {
  std::string_view type;
  void (*read)(Bytes block, float* out);
};
constexpr std::array<Reader, 10> kReaders{{{"Q4_0", q4_0},
                                           {"Q4_1", q4_1},
                                           {"Q5_0", q5_0},
                                           {"Q5_1", q5_1},
                                           {"Q8_0", q8_0},
                                           {"Q2_K", q2_k},
                                           {"Q3_K", q3_k},
                                           {"Q4_K", q4_k},
                                           {"Q5_K", q5_k},
                                           {"Q6_K", q6_k}}};

const Reader* find_reader(const GgufType& type) {
  const auto* found = std::ranges::find(kReaders, type.name, &Reader::type);
  return found == kReaders.end() ? nullptr : found;
}

}  // namespace

bool can_dequantize_gguf(const GgufType& type) { return find_reader(type) != nullptr; }

std::string dequantized_gguf_types() {
  std::string names;
  for (const auto& reader : kReaders) names += (names.empty() ? "" : ", ") + std::string(reader.type);
  return names;
}

void dequantize_gguf(const GgufType& type, std::span<const std::byte> blocks, std::span<float> out) {
  const auto* reader = find_reader(type);
  if (reader == nullptr || out.size() % type.block_elements != 0 ||
      blocks.size() != out.size() / type.block_elements * type.block_bytes)
    throw std::invalid_argument("dequantize_gguf() reads whole blocks of " + dequantized_gguf_types());
  const auto* bytes = reinterpret_cast<Bytes>(blocks.data());
  for (std::size_t i = 0; i < out.size() / type.block_elements; ++i)
    reader->read(bytes + i * type.block_bytes, out.data() + i * type.block_elements);
}

}  // namespace fsdp
