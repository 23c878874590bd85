#pragma once
// splitmix64 (Steele, Lea, Flood, OOPSLA 2014), a counter-based random generator, and FNV-1a (Fowler, Noll, Vo), a hash
// of names. Neither may change, because saved runs, initial weights and masks depend on them. The kernels have their
// own splitmix64, since each instruction set compiles its own code.
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

/// The generator's next output in state `z`.
constexpr std::uint64_t splitmix64(std::uint64_t z) { return splitmix64_output(z + kSplitmix64Step); }

/// The 64-bit FNV-1a hash of `text`.
constexpr std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace fsdp
