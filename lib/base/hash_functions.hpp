#pragma once
// splitmix64 (Steele, Lea, Flood, OOPSLA 2014): numbers that are a function of a counter. Frozen: saved runs depend on
// it. The kernels have one of their own, since each instruction set compiles its own code.
#include <cstdint>
#include <string_view>

namespace fsdp {

inline constexpr std::uint64_t kSplitmix64Step = 0x9e3779b97f4a7c15u;

/// The output function: a permutation of the 64-bit numbers.
constexpr std::uint64_t splitmix64_output(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// The number that follows on state `z`.
constexpr std::uint64_t splitmix64(std::uint64_t z) { return splitmix64_output(z + kSplitmix64Step); }

// FNV-1a, 64 bits (Fowler, Noll, Vo): a number from a name. Frozen: random weights and masks depend on it.

constexpr std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace fsdp
