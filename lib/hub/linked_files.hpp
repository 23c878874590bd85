#pragma once
#include <filesystem>
#include <vector>

#include "lib/hub/repo.hpp"

namespace fsdp {

/// The files of a snapshot of which no listing is kept, by path: its links point to blobs that are named by their hash.
/// Sizes are as found, 0 of a link that leads nowhere.
/// \param plain_files  also files that are no links, as there are where links cannot be made: their hash is ""
std::vector<RemoteFile> linked_files(const std::filesystem::path& snapshot, bool plain_files);

}  // namespace fsdp
