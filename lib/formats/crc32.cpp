#include "lib/formats/crc32.hpp"

#include <libdeflate.h>
#include <zlib.h>

#include <limits>

namespace fsdp {

std::uint32_t crc32(std::uint32_t crc, std::span<const std::byte> data) {
  // libdeflate starts from the initial value where it is given a null pointer.
  return data.empty() ? crc : libdeflate_crc32(crc, data.data(), data.size());
}

std::uint32_t crc32_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t length_b_bytes) {
  static_assert(std::numeric_limits<z_off_t>::max() >= std::numeric_limits<std::int64_t>::max());
  return static_cast<std::uint32_t>(::crc32_combine(crc_a, crc_b, static_cast<z_off_t>(length_b_bytes)));
}

}  // namespace fsdp
