#pragma once
// The task files of data/tasks, which are part of the library, so that installed programs need no data folder.
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp {

/// Name and text of each file, sorted by name. Those that begin with _ are for others to include.
const std::vector<std::pair<std::string_view, std::string_view>>& shipped_tasks();

/// The text of one. \throws std::logic_error when there is none
std::string_view shipped_task(std::string_view file);

}  // namespace fsdp
