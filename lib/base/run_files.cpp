#include "lib/base/run_files.hpp"

#include <algorithm>
#include <system_error>

namespace fsdp {

std::vector<std::filesystem::path> files_of_runs(const std::filesystem::path& path, const std::string& name) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return {path};
  if (std::filesystem::exists(path / name, error)) return {path / name};
  std::vector<std::filesystem::path> files;
  for (std::filesystem::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (std::filesystem::exists(it->path() / name, error)) files.push_back(it->path() / name);
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace fsdp
