#pragma once
// Numbers of the zip format (PKWARE APPNOTE 6.3) and little-endian access, for zip_reader.cpp and zip_writer.cpp.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp::detail {

constexpr std::uint32_t zip_local_header = 0x04034b50, zip_descriptor = 0x08074b50, zip_central_header = 0x02014b50,
                        zip_end64 = 0x06064b50, zip_end64_locator = 0x07064b50, zip_end = 0x06054b50;
constexpr std::size_t zip_local_header_bytes = 30, zip_central_header_bytes = 46, zip_end64_bytes = 56,
                      zip_end64_locator_bytes = 20, zip_end_bytes = 22;
constexpr std::uint32_t zip_in_zip64 = 0xffffffffu;  ///< in a 32-bit field: the value is in the zip64 extra field
constexpr std::uint16_t zip64_extra = 0x0001, torch_padding_extra = 0x4246;  // "FB"
constexpr std::uint16_t zip_flags = 0x0808;  ///< data descriptor follows, names are UTF-8
constexpr std::uint16_t zip_flag_encrypted = 0x0001;

/// Little-endian integer at `offset`; the caller has checked that it is there.
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
