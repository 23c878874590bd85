#pragma once
// UnitPass::update_and_cast: units are updated one after the other, and gathered while others are updated.
#include <vector>

#include "lib/compute/device/observer.hpp"
#include "lib/engine/fsdp/units.hpp"
#include "lib/engine/sharding/comm_counts.hpp"

namespace fsdp::detail {

/// Begins with the units that the next forward needs first: the all-gather of each starts as soon as the unit is
/// updated, while the device updates the other units, and the next forward waits for it. Collective.
/// \param first  indices of these units, in forward order
/// \param counts  of the shard axis. All references must outlive the result
ParameterGroups update_and_gather(const Units& units, const std::vector<int>& first, AxisCounts& counts,
                                  const EngineObservers& observers);

}  // namespace fsdp::detail
