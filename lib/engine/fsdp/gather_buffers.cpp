#include "lib/engine/fsdp/gather_buffers.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <utility>

namespace fsdp {

at::Tensor GatherBuffers::take(std::int64_t bytes) {
  auto best = free_.end();
  for (auto each = free_.begin(); each != free_.end(); ++each) {
    if (each->numel() >= bytes && (best == free_.end() || each->numel() < best->numel())) best = each;
  }
  if (best == free_.end()) return {};
  auto taken = *best;
  free_.erase(best);
  return taken;
}

void GatherBuffers::give_back(at::Tensor buffer) {
  if (buffer.storage().use_count() > 1) throw std::logic_error("a gathered parameter is in use after its release");
  free_.push_back(std::move(buffer));
}

std::vector<std::int64_t> gather_buffer_bytes(const std::vector<std::vector<Action>>& plans,
                                              const std::vector<std::int64_t>& unit_bytes) {
  // At each moment the i-th largest of the units that are gathered must find an i-th largest buffer.
  std::vector<std::int64_t> needed;
  std::vector<bool> gathered(unit_bytes.size(), false);
  for (const auto& plan : plans) {
    for (const auto& action : plan) {
      if (action.kind != ActionKind::unshard && action.kind != ActionKind::reshard) continue;
      gathered[static_cast<std::size_t>(action.index)] = action.kind == ActionKind::unshard;
      std::vector<std::int64_t> now;
      for (std::size_t u = 0; u < unit_bytes.size(); ++u) {
        if (gathered[u] && unit_bytes[u] > 0) now.push_back(unit_bytes[u]);
      }
      std::sort(now.rbegin(), now.rend());
      needed.resize(std::max(needed.size(), now.size()), 0);
      for (std::size_t i = 0; i < now.size(); ++i) needed[i] = std::max(needed[i], now[i]);
    }
  }
  return needed;
}

}  // namespace fsdp
