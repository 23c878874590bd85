#pragma once
// Tables of the rotary embedding, as far as batches have needed them.
#include <algorithm>
#include <cstdint>
#include <list>
#include <utility>
#include <vector>

#include "lib/compute/ops/ops.hpp"
#include "lib/models/config/rope.hpp"
#include "lib/models/layers/decoder.hpp"

namespace fsdp {

/// Cosines and sines of rotary positions, computed once for the positions and frequencies used so far. Shared by the
/// blocks of one decoder; not thread-safe.
class RopeCache {
 public:
  /// \param slides  for sliding-window layers
  RopeCache(const Ops& ops, const ModelConfig& config, bool slides)
      : ops_(ops), config_(config), slides_(slides), factor_(rope_attention_factor(config, slides)) {
    entries_.push_back({.frequencies = rope_frequencies(config, slides), .table = {}});
  }

  /// Returns the rotation of a micro-batch's tokens.
  Rotation rotation(const MicroBatch& batch) {
    const auto end = batch.first_position + batch.length;
    auto longest = end;
    if (batch.packing != nullptr) {
      longest = 0;
      for (const auto& document : batch.packing->documents)
        longest = std::max(longest, document.shared + document.length);
    }
    return {up_to(end, longest), detail::token_positions(batch)};
  }

 private:
  struct Entry {
    std::vector<float> frequencies;
    RopeTable table;
  };
  static constexpr std::size_t kMostKinds = 2;  ///< longrope has two

  /// Returns a table for at least the positions [0, positions). \param length  end of the batch's longest sequence
  const RopeTable& up_to(std::int64_t positions, std::int64_t length) {
    if (length == length_) return grown(entries_.back(), positions);
    length_ = length;
    auto frequencies = rope_frequencies(config_, slides_, length);
    const auto same = std::find_if(entries_.begin(), entries_.end(),
                                   [&](const Entry& entry) { return entry.frequencies == frequencies; });
    if (same == entries_.end()) {
      // A kind whose frequencies follow the length would keep a table per length.
      if (ops_.recorder() == nullptr && entries_.size() == kMostKinds) entries_.pop_front();
      entries_.push_back({.frequencies = std::move(frequencies), .table = {}});
    } else {
      entries_.splice(entries_.end(), entries_, same);
    }
    return grown(entries_.back(), positions);
  }

  const RopeTable& grown(Entry& entry, std::int64_t positions) {
    auto& table = entry.table;
    if (table.cos_PH.defined() && table.cos_PH.size(0) >= positions) return table;
    // CUDA graphs keep reading the table of their capture, so shorter tables are kept. The length at least doubles, so
    // that all shorter tables together are smaller than the last one.
    if (table.cos_PH.defined()) {
      shorter_.push_back(table);
      positions = std::max(positions, 2 * table.cos_PH.size(0));
    }
    constexpr std::int64_t kStep = 256;
    table = ops_.rope_table(entry.frequencies, (std::max<std::int64_t>(positions, 1) + kStep - 1) / kStep * kStep);
    if (factor_ != 1) {
      table.cos_PH.mul_(factor_);
      table.sin_PH.mul_(factor_);
    }
    return table;
  }

  const Ops& ops_;
  ModelConfig config_;
  bool slides_;
  double factor_;             ///< of cosines and sines
  std::list<Entry> entries_;  ///< by frequencies, the latest last
  std::int64_t length_ = -1;  ///< of the latest
  std::vector<RopeTable> shorter_;
};

}  // namespace fsdp
