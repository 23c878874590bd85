#pragma once
// Reads a file once from front to back, and unpacks one that gzip or zstd compressed.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "lib/base/files/file.hpp"

namespace fsdp::detail {

/// True for the first bytes of a file that UnpackedFile unpacks.
bool is_packed(std::string_view head);

class UnpackedFile {
 public:
  /// \param begin  of what is read, in bytes; a file that is read from its middle on is none that was compressed
  /// \throws IoError
  explicit UnpackedFile(const std::filesystem::path& file, std::uint64_t begin = 0);
  ~UnpackedFile();
  UnpackedFile(const UnpackedFile&) = delete;
  UnpackedFile& operator=(const UnpackedFile&) = delete;

  const std::filesystem::path& path() const { return file_.path(); }
  /// Replaces `block` by the next bytes of the content, up to 1 MiB. \return false at the end
  /// \throws FormatError when compressed data is damaged or ends early; IoError
  bool read(std::string& block);
  bool is_packed() const { return unpacker_ != nullptr; }
  /// Bytes of the file that have been read.
  std::int64_t bytes_read() const { return static_cast<std::int64_t>(offset_ - rest_.size()); }

 private:
  class Unpacker;
  class Gzip;
  class Zstd;
  bool refill();

  File file_;
  std::uint64_t size_;
  std::uint64_t offset_;  ///< position in the file after the packed block
  std::string packed_;
  std::string_view rest_;  ///< of the packed block
  std::unique_ptr<Unpacker> unpacker_;
};

}  // namespace fsdp::detail
