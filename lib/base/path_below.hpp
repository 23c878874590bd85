#pragma once
// Where one path lies relative to another: by what they are, not by how they are spelled.
#include <filesystem>
#include <optional>

namespace fsdp {

/// The way from `directory` down to `path`: "." when they are the same, nothing when `path` lies elsewhere. Symbolic
/// links are followed and folders compared by device and inode; what does not exist yet counts by its name.
std::optional<std::filesystem::path> path_below(const std::filesystem::path& path,
                                                const std::filesystem::path& directory);

}  // namespace fsdp
