#include "lib/training/state/latest_link.hpp"

#include <algorithm>
#include <system_error>

#include "lib/base/files/file.hpp"
#include "lib/training/state/checkpoint_names.hpp"

namespace fsdp {

void point_latest_to(const std::filesystem::path& checkpoints, std::int64_t step) {
  replace_symlink(checkpoint_name(step), checkpoints / "latest");
  sync_directory(checkpoints);
}

std::string roll_back_latest(const std::filesystem::path& checkpoints, std::int64_t newest_step,
                             std::int64_t proven_step) {
  std::error_code error;
  if (newest_step <= proven_step ||
      std::filesystem::read_symlink(checkpoints / "latest", error) != checkpoint_name(newest_step))
    return "";
  const auto steps = checkpoint_steps(checkpoints);
  const auto proven = std::find_if(steps.rbegin(), steps.rend(), [&](auto step) { return step <= proven_step; });
  if (proven == steps.rend()) return "";
  point_latest_to(checkpoints, *proven);
  return (checkpoints / checkpoint_name(*proven)).string();
}

}  // namespace fsdp
