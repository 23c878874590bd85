#pragma once
// Output files that a user names, or may remove.
#include <filesystem>
#include <optional>
#include <string_view>

#include "lib/base/files/file.hpp"

namespace fsdp {

/// The relative path from `directory` down to `path`: "." when they are identical, nullopt when `path` is not below
/// `directory`. Follows symbolic links and compares folders by device and inode; the part of a path that does not exist
/// is compared by name.
std::optional<std::filesystem::path> path_below(const std::filesystem::path& path,
                                                const std::filesystem::path& directory);

/// Writes `text` to an output that a user names (docs/formats.md, "Output files"). A regular file is replaced as a
/// whole and keeps its mode; a link stays and its target is replaced; terminals, pipes and other character devices are
/// written in place; everything else is refused. The programs' own files are written with replace_file() instead.
/// \throws IoError, also for a pipe without a reader
void write_output(const std::filesystem::path& path, std::string_view text);

/// Resolves the path of an output that needs random access. Follows links to a regular file or an unused name.
/// \throws UsageError when `path` is a device, a pipe or a socket; a directory is left to the caller
std::filesystem::path seekable_output(const std::filesystem::path& path);

/// False when the name of an open file was removed, or is another file's by now.
bool keeps_its_name(const File& file);

/// Gives `temporary` the mode of the regular file `replaced`, if that exists.
void keep_mode(const std::filesystem::path& replaced, const std::filesystem::path& temporary);

}  // namespace fsdp
