#include "lib/base/path_below.hpp"

namespace fsdp {
namespace {

/// Absolute, links resolved as far as it exists, without a slash at its end.
std::filesystem::path resolved(const std::filesystem::path& path) {
  std::error_code error;
  auto found = std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  return found.has_filename() || !found.has_relative_path() ? found : found.parent_path();
}

}  // namespace

std::optional<std::filesystem::path> path_below(const std::filesystem::path& path,
                                                const std::filesystem::path& directory) {
  const auto top = resolved(directory);
  auto here = resolved(path);
  std::filesystem::path way = ".";
  while (true) {
    std::error_code not_there;
    if (here == top || std::filesystem::equivalent(here, top, not_there)) return way.lexically_normal();
    if (!here.has_relative_path()) return std::nullopt;
    way = way == "." ? here.filename() : here.filename() / way;
    here = here.parent_path();
  }
}

}  // namespace fsdp
