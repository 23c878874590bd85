#include "lib/training/state/checkpoint_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace fsdp {

std::string checkpoint_name(std::int64_t step) { return fmt::format("step-{:08d}", step); }

std::int64_t step_of_checkpoint(std::string_view name) {
  constexpr std::string_view kPrefix = "step-";
  std::int64_t step = 0;
  if (!name.starts_with(kPrefix)) return -1;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  return name == checkpoint_name(step) ? step : -1;
}

std::vector<std::int64_t> checkpoint_steps(const std::filesystem::path& directory) {
  std::vector<std::int64_t> steps;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.is_symlink() || !entry.is_directory()) continue;
    if (const auto step = step_of_checkpoint(entry.path().filename().string()); step >= 0) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

}  // namespace fsdp
