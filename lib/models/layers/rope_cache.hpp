#pragma once
// Cosines and sines of rotary positions, made once for as many positions as a model has met.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "lib/compute/ops/ops.hpp"

namespace fsdp {

/// Shared by the blocks of one decoder; one thread at a time.
class RopeCache {
 public:
  /// \param frequencies  radians per position, see rope_frequencies()
  RopeCache(const Ops& ops, std::vector<float> frequencies) : ops_(ops), frequencies_(std::move(frequencies)) {}

  /// The table for positions [0, positions) and perhaps more.
  const RopeTable& up_to(std::int64_t positions) {
    if (table_.cos_PH.defined() && table_.cos_PH.size(0) >= positions) return table_;
    // Recorded work goes on reading a shorter one that it has read. Twice as long each time, so that all of those are
    // together shorter than the last.
    if (table_.cos_PH.defined()) {
      shorter_.push_back(table_);
      positions = std::max(positions, 2 * table_.cos_PH.size(0));
    }
    constexpr std::int64_t kStep = 256;
    table_ = ops_.rope_table(frequencies_, (std::max<std::int64_t>(positions, 1) + kStep - 1) / kStep * kStep);
    return table_;
  }

 private:
  const Ops& ops_;
  std::vector<float> frequencies_;
  RopeTable table_;
  std::vector<RopeTable> shorter_;
};

}  // namespace fsdp
