#pragma once
// CRC-32 as zip and zlib use it (polynomial 0xEDB88320, reflected).
#include <cstddef>
#include <cstdint>
#include <span>

namespace fsdp {

/// Continues `crc` (0 at the start) over `data`. The result is that of zlib's crc32(), several times faster.
std::uint32_t crc32(std::uint32_t crc, std::span<const std::byte> data);

/// The CRC-32 of A followed by B, from the CRC-32 of each and the length of B.
std::uint32_t crc32_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t length_b_bytes);

}  // namespace fsdp
