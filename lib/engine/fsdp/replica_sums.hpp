#pragma once
// The last part of a reduction: sums of gradient shards over the replicas, and their copies to the host.
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "lib/engine/fsdp/units.hpp"
#include "lib/engine/sharding/comm_counts.hpp"

namespace fsdp::detail {

/// Works on one unit at a time, and ends with it one unit later, so that both overlap with the backward of the next.
class ReplicaSums {
 public:
  /// \param counts  of the replicate axis. All references must outlive the object
  ReplicaSums(const EngineInput& input, const EnginePolicy& policy, AxisCounts& counts)
      : input_(input), policy_(policy), counts_(counts) {}

  /// Begins with a unit whose reduce-scatter has ended. \param over_replicas  its shards are summed over the replicas
  void start(Unit& unit, bool over_replicas);
  /// Ends with the unit that was started last. Copies to the host that this starts end with the next call.
  void drain();
  /// After an interrupted capture of a CUDA graph, which had no sums of replicas.
  void forget() { unit_ = nullptr; }

 private:
  void start_sum();
  void finish_sum();

  const EngineInput& input_;
  const EnginePolicy& policy_;
  AxisCounts& counts_;
  Unit* unit_ = nullptr;                              ///< in progress
  std::unique_ptr<Work> work_;                        ///< its all-reduce, in progress
  std::vector<at::Tensor> sums_;                      ///< tensors of work_
  std::vector<std::unique_ptr<Transfer>> transfers_;  ///< copies of sums to the host, in progress
};

}  // namespace fsdp::detail
