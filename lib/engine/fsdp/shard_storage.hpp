#pragma once
// Where this rank's rows of master weights, gradients and optimizer states are between their uses: in memory, or in a
// store of which a few groups at a time are in memory. The engine asks for what a pass needs and does not know which.
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "lib/compute/ops/ops.hpp"
#include "lib/engine/offload/tensor_store.hpp"
#include "lib/engine/sharding/parameter_groups.hpp"
#include "lib/engine/sharding/policy.hpp"

namespace fsdp {
struct EngineInput;

namespace detail {

struct Unit;
class Units;

class ShardStorage {
 public:
  ShardStorage() = default;
  ShardStorage(const ShardStorage&) = delete;
  ShardStorage& operator=(const ShardStorage&) = delete;
  virtual ~ShardStorage() = default;

  /// Shards stay in memory, at one address: a full gradient may be the shard, and the device may read shards whenever
  /// it likes.
  virtual bool stays_in_memory() const = 0;

  // Making, in the order of units.

  /// This rank's rows of trained parameters in param_dtype, by place in the unit. Empty: UnitParams has them in memory.
  virtual std::vector<StoredTensor> make_parameters(const Unit& unit) = 0;
  /// The master weight of a trained parameter. \param own  the rows that are gathered, which it may be
  virtual StoredTensor make_master_weight(const Unit& unit, std::size_t place, const StoredTensor& own) = 0;
  /// Gradients in float32, by place in Unit::grad_layouts. Empty: UnitGrads has them in memory.
  virtual std::vector<StoredTensor> make_gradients(const Unit& unit) = 0;

  // Use. A hold without effect stands for tensors that are in memory anyway.

  virtual StoreHold hold_gradients(const Unit& unit, Access access) = 0;
  virtual bool has_gradients(const Unit& unit) const = 0;
  /// Call while the sums of a step's gradients are in memory and complete: keeps what sum_squares() needs of them.
  virtual void measure_gradients(const Units& units, const Unit& unit) = 0;
  /// Sums over this rank's rows of the parameters' gradients, in float64.
  virtual double sum_squares(const Units& units, std::span<const std::size_t> params) const = 0;
  /// The all-gather of the unit begins; the next one may be prepared.
  virtual void begin_gather(const Unit& unit) = 0;
  /// Casts master weights that changed to the rows that are gathered: those of a unit that is always in memory ...
  virtual void cast(const Unit& unit) = 0;
  /// ... and one that was held for the change and still is.
  virtual void cast_held(const Unit& unit, std::size_t place) = 0;
  /// Leaves in memory what training starts with, however shards were filled.
  virtual void settle() = 0;
  /// For UnitPass::read_gradients and UnitPass::update. Both must outlive the result.
  virtual ParameterGroups groups(const Units& units, UnitPass pass) = 0;
};

/// All references, and what they refer to, must outlive the storage.
std::unique_ptr<ShardStorage> make_shard_storage(const EngineInput& input, const EnginePolicy& policy);
std::unique_ptr<ShardStorage> make_memory_shards(const Ops& ops, const EnginePolicy& policy);
std::unique_ptr<ShardStorage> make_stored_shards(TensorStore& store, const Ops& ops, const EnginePolicy& policy);

}  // namespace detail
}  // namespace fsdp
