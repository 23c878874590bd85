#pragma once
// Where one path lies relative to another: by what they are, not by how they are spelled.
#include <filesystem>
#include <optional>
#include <string_view>

namespace fsdp {

/// The way from `directory` down to `path`: "." when they are the same, nothing when `path` lies elsewhere. Symbolic
/// links are followed and folders compared by device and inode; what does not exist yet counts by its name.
std::optional<std::filesystem::path> path_below(const std::filesystem::path& path,
                                                const std::filesystem::path& directory);

// One rule for every file that a user names as an output (docs/formats.md, "Output files"): a regular file is replaced
// as a whole and keeps its mode, a link stays and what it leads to is replaced, terminals, pipes and other character
// devices are written in place, everything else is refused. Files of the programs' own go through replace_file().

/// Writes `text` by that rule. \throws IoError, also for a pipe that nobody reads
void write_output(const std::filesystem::path& path, std::string_view text);

/// For what is written in pieces at any place: the name, links followed, of a regular file or of nothing yet.
/// \throws UsageError when a device, a pipe or a socket has that name; a directory is the caller's business
std::filesystem::path seekable_output(const std::filesystem::path& path);

/// Gives `temporary` the mode of the regular file that it is going to replace, if there is one.
void keep_mode(const std::filesystem::path& replaced, const std::filesystem::path& temporary);

}  // namespace fsdp
