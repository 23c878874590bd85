#pragma once
// FNV-1a, 64 bits (Fowler, Noll, Vo): a number from a name. Frozen: random weights and masks depend on it.
#include <cstdint>
#include <string_view>

namespace fsdp {

constexpr std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace fsdp
