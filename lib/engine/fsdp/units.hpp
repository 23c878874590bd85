#pragma once
// The units of an engine: their parameters, which are gathered and freed together, and gradients, which are reduced
// together.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/base/types/index.hpp"
#include "lib/engine/fsdp/engine.hpp"
#include "lib/engine/fsdp/shard_storage.hpp"
#include "lib/engine/sharding/comm_counts.hpp"

namespace fsdp::detail {

struct Unit {
  int index = 0;
  std::string name;
  std::vector<int> params;
  std::vector<ParamLayout> layouts;
  std::vector<ShardRange> ranges;  ///< this rank's rows
  std::unique_ptr<UnitParams> gathered;
  std::unique_ptr<UnitGrads> grads;  ///< null: the unit is frozen
  std::vector<int> trained;          ///< by index in params: index among the gradients; -1: frozen
  std::vector<ParamLayout> grad_layouts;
  std::vector<StoredTensor> master_weights;
  StoreHold held;                          ///< keeps the gradients in memory during their reduction
  at::ScalarType wire_dtype = at::kFloat;  ///< of gradients in the all-reduce over replicas
  bool is_gathered = false;
  bool is_coming = false;         ///< an update has started its all-gather
  std::int64_t gather_bytes = 0;  ///< bytes that this rank receives in one all-gather
  std::int64_t reduce_bytes = 0;
  std::int64_t shard_elements = 0;  ///< elements of this rank's gradient shards
};

class Units {
 public:
  /// Collective. \param input, policy, storage  must outlive the object
  Units(const EngineInput& input, const EnginePolicy& policy, ShardStorage& storage);

  auto begin() const { return units_.begin(); }
  auto end() const { return units_.end(); }
  std::size_t size() const { return units_.size(); }
  Unit& operator[](std::size_t index) const { return *units_[index]; }
  Unit& of(std::size_t param) const { return *element(units_, unit_index_[param]); }
  /// The place of a parameter within its unit.
  std::size_t place(std::size_t param) const { return to_index(place_[param]); }
  std::size_t num_parameters() const { return unit_index_.size(); }
  /// True when the ranks of the shard axis exchange parameters and gradients through shared memory.
  bool uses_peer_memory() const { return peer_memory_; }

  const StoredTensor& master_weight(std::size_t param) const { return of(param).master_weights[place(param)]; }
  /// Undefined for a frozen parameter, and while it is not in memory.
  at::Tensor gradient(std::size_t param) const;
  /// This rank's rows of those that are trained; none of a parameter of which this rank has no rows.
  std::vector<GradPart> gradient_parts(std::span<const std::size_t> params) const;
  std::vector<at::Tensor> full(const std::vector<int>& params) const;
  std::vector<GradSlot*> grad_slots(const std::vector<int>& params) const;

  void unshard(Unit& unit, AxisCounts& counts) const;
  /// Makes the next micro-batch gather units again that stay gathered, because their shards change.
  void forget_gathered() const;
  /// Waits for all-gathers that no micro-batch has used.
  void release_coming() const;

 private:
  void build_parameters();
  void add_parameter(Unit& unit, std::size_t place);
  void build_gradients();

  const EngineInput& input_;
  const EnginePolicy& policy_;
  ShardStorage& storage_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<int> unit_index_;  ///< by parameter
  std::vector<int> place_;       ///< by parameter
  bool peer_memory_ = false;
};

/// Gradients, master weights and the optimizer's states are on the device between their uses.
bool shards_are_on_device(const EnginePolicy& policy, const ShardStorage& storage);

}  // namespace fsdp::detail
