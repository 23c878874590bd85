#pragma once
// Writing to folders shared by processes of several hosts, without file locks, which may have no effect on Lustre, GPFS
// and NFS without flock.
#include <filesystem>
#include <string>
#include <string_view>

namespace fsdp {

/// A name that no other process on any host uses: 16 random hexadecimal digits.
std::string unique_name();

/// A unique tag of this process, constant over its life and beginning with its pid, for names of files that only this
/// process writes. The pid is not unique across hosts and pid namespaces (containers).
const std::string& process_tag();

/// Creates `directory` and its parents; another process may create them at the same time. \throws IoError
void make_directories(const std::filesystem::path& directory);

/// Checks that no folder on the path from `base` to `directory` is a symbolic link, which another user may have
/// planted. `base` itself may be reached through links. Folders that do not exist are accepted. \param own_links accept
/// links owned by this user or root \throws FormatError naming the link
void refuse_planted_links(const std::filesystem::path& base, const std::filesystem::path& directory, bool own_links);

/// Replaces `path` atomically: readers see the old or the new text, and one of several concurrent writers wins. Creates
/// the folder. \throws IoError
void publish_text(const std::filesystem::path& path, std::string_view text);

/// Creates `path` with `text` unless it exists; exactly one of several processes succeeds. Uses link(2), which is
/// atomic on NFS, or O_EXCL on file systems without hard links. \return false when `path` exists or its folder does
/// not. \throws IoError
bool create_exclusively(const std::filesystem::path& path, std::string_view text);

}  // namespace fsdp
