#include "lib/files/formats/dcp_tiling.hpp"

#include <algorithm>

namespace fsdp::detail {

std::optional<std::string> tiling_problem(std::vector<Block> blocks, std::int64_t num_elements) {
  std::int64_t covered = 0;  // cannot overflow while nothing overlaps
  const auto first_row = [](const Block& block) { return block.offsets.empty() ? 0 : block.offsets[0]; };
  const auto end_row = [](const Block& block) { return block.offsets.empty() ? 1 : block.offsets[0] + block.sizes[0]; };
  std::sort(blocks.begin(), blocks.end(), [&](const Block& a, const Block& b) { return first_row(a) < first_row(b); });
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    for (std::size_t k = i + 1; k < blocks.size() && first_row(blocks[k]) < end_row(blocks[i]); ++k) {
      if (intersect(blocks[i], blocks[k])) return "two of its chunks overlap";
    }
    covered += fsdp::num_elements(blocks[i].sizes);
  }
  if (covered == num_elements) return std::nullopt;
  return "its chunks hold " + std::to_string(covered) + " of the " + std::to_string(num_elements) + " elements wanted";
}

}  // namespace fsdp::detail
