#pragma once
// Names of the checkpoints in a run's folder.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

/// "step-00000147"
std::string checkpoint_name(std::int64_t step);

/// The step in such a name; -1: it is none.
std::int64_t step_of_checkpoint(std::string_view name);

/// Steps of the directories step-NNNNNNNN, ascending. Directories of other names are ignored.
std::vector<std::int64_t> checkpoint_steps(const std::filesystem::path& directory);

}  // namespace fsdp
