#include "lib/hub/linked_files.hpp"

#include <algorithm>

namespace fsdp {

namespace fs = std::filesystem;

std::vector<RemoteFile> linked_files(const fs::path& snapshot, bool plain_files) {
  std::vector<RemoteFile> files;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(snapshot, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    RemoteFile file{entry->path().lexically_relative(snapshot).generic_string(), 0, "", std::nullopt, std::nullopt};
    if (entry->is_symlink(ignored)) {
      file.blob_id = fs::read_symlink(entry->path(), ignored).filename().string();
    } else if (!plain_files || !entry->is_regular_file(ignored)) {
      continue;
    }
    const auto size = fs::file_size(entry->path(), ignored);
    if (!ignored) file.size_bytes = size;
    if (file.blob_id.size() == 64) file.lfs_sha256 = file.blob_id;
    files.push_back(std::move(file));
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return files;
}

}  // namespace fsdp
