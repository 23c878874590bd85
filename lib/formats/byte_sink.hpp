#pragma once
// Writes a file from front to back and keeps its position and CRC-32.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "lib/base/files/file.hpp"

namespace fsdp {

/// Buffers small writes and passes large ones on without a copy. The CRC-32 is computed while the bytes are in cache.
class ByteSink {
 public:
  /// Creates the file, or truncates an existing one. \throws IoError
  explicit ByteSink(const std::filesystem::path& path);

  /// Returns the CRC-32 of `data`. \throws IoError
  std::uint32_t write(std::span<const std::byte> data);
  std::uint32_t write(std::string_view text);
  /// Flushes, syncs and closes the file. Without this call buffered bytes are lost. \throws IoError
  void finish();

  std::uint64_t position() const { return position_; }  ///< bytes written so far
  std::uint32_t crc32() const { return crc32_; }        ///< of all bytes written so far

 private:
  void flush();

  File file_;
  std::string buffer_;
  std::uint64_t position_ = 0;
  std::uint32_t crc32_ = 0;
};

}  // namespace fsdp
