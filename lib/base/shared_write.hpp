#pragma once
// Writing where processes of several hosts write at once and locks may do nothing (Lustre, GPFS, NFS without flock).
#include <filesystem>
#include <string>
#include <string_view>

namespace fsdp {

/// A name no other process on any host uses: 16 random hexadecimal digits.
std::string unique_name();

/// The same one for all of this process's life, beginning with its pid: for names of files that it alone writes. The
/// pid by itself is no such name: processes of other hosts, and of other pid namespaces (containers), have it too.
const std::string& process_tag();

/// Makes the folders of `directory`, which may appear or be made by another process meanwhile. \throws IoError
void make_directories(const std::filesystem::path& directory);

/// Makes sure that no folder on the way from `base` to `directory` is a symbolic link, which another user could have
/// put there. `base` itself and what lies above it may be reached by links. What is not there yet passes.
/// \param own_links  links that this user or root made are fine
/// \throws FormatError naming the link
void refuse_planted_links(const std::filesystem::path& base, const std::filesystem::path& directory, bool own_links);

/// Replaces `path` as a whole: readers see the old or the new text, and of several writers one wins.
/// Makes its folder. \throws IoError
void publish_text(const std::filesystem::path& path, std::string_view text);

/// Makes `path` with `text` unless it is there already; of several processes exactly one succeeds. Done with link(2),
/// which is atomic on NFS, and O_EXCL where a file system has no hard links.
/// \return false when it is there already, or its folder is gone. \throws IoError
bool create_exclusively(const std::filesystem::path& path, std::string_view text);

}  // namespace fsdp
