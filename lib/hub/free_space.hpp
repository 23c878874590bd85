#pragma once
#include <cstdint>
#include <filesystem>

#include "lib/base/file.hpp"

namespace fsdp {

/// Sets the size of an open file and reserves its blocks where the file system can do so without writing them.
/// \throws IoError when there is no room (disk or quota)
void reserve_space(const File& file, std::uint64_t size_bytes);

/// Refuses early: `needed_bytes` and `needed_files` must fit on the file system of `directory` (made if absent), and
/// into the quota where the file system can be asked by reserving. \throws IoError naming the shortage
void require_free_space(const std::filesystem::path& directory, std::uint64_t needed_bytes, std::uint64_t needed_files);

}  // namespace fsdp
