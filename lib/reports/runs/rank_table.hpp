#pragma once
// The ranks of a running job as lines of text.
#include <string>
#include <vector>

#include "lib/reports/runs/rank_status.hpp"

namespace fsdp {

/// A line of titles and a line per rank; where these are more than `rows`, the lowest, median and highest value of each
/// column; nothing where these do not fit either. What no rank tells has no column, and the last columns are left out
/// where the lines would be longer than `width` characters.
std::vector<std::string> rank_table(const std::vector<NodeStatus>& nodes, int width, int rows);

}  // namespace fsdp
