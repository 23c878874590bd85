#pragma once
// Little-endian integers in strings of bytes.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp::detail {

/// Reads the little-endian integer at `offset`. The caller has checked that all of its bytes are there.
template <typename Integer>
Integer read_le(std::string_view bytes, std::size_t offset) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    value |= std::uint64_t{static_cast<unsigned char>(bytes[offset + i])} << (8 * i);
  }
  return static_cast<Integer>(value);
}

template <typename Integer>
void append_le(std::string& out, Integer value) {
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    out.push_back(static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xff));
  }
}

}  // namespace fsdp::detail
