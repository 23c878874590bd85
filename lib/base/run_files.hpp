#pragma once
// Files that runs leave under one name, found by what people point at.
#include <filesystem>
#include <string>
#include <vector>

namespace fsdp {

/// `path` itself where it is no directory; of a run's directory its file `name`; of a directory of runs those of all
/// that have one, sorted, which may be none.
std::vector<std::filesystem::path> files_of_runs(const std::filesystem::path& path, const std::string& name);

}  // namespace fsdp
