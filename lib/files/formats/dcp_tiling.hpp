#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/files/formats/block.hpp"

namespace fsdp::detail {

/// What is wrong when `blocks`, all with elements and inside one region of `num_elements`, do not tile that region.
std::optional<std::string> tiling_problem(std::vector<Block> blocks, std::int64_t num_elements);

}  // namespace fsdp::detail
