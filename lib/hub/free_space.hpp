#pragma once
#include <cstdint>
#include <filesystem>

#include "lib/base/files/file.hpp"

namespace fsdp {

/// Sets the size of an open file and reserves its blocks, if the file system can do so without writing them.
/// \throws IoError when the disk or the quota has too little room
void reserve_space(const File& file, std::uint64_t size_bytes);

/// Checks before a download that `needed_bytes` and `needed_files` fit on the file system of `directory` (created if
/// absent) and, where fallocate() reports it, into the quota. \throws IoError naming the shortage
void require_free_space(const std::filesystem::path& directory, std::uint64_t needed_bytes, std::uint64_t needed_files);

}  // namespace fsdp
