#pragma once
// Parameters of one unit: this rank's shard, and the full tensors between unshard() and reshard().
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "lib/compute/ops/ops.hpp"
#include "lib/engine/collectives/tensor_collectives.hpp"
#include "lib/engine/offload/tensor_store.hpp"
#include "lib/engine/sharding/shard_layout.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// The parts of the engine that UnitParams and UnitGrads use. The references must outlive them.
struct UnitContext {
  ProcessGroup& shard_group;       ///< ranks the unit is split over
  TensorCollectives& collectives;  ///< of the ranks in shard_group
  const Ops& ops;
  bool use_peer_memory;                         ///< the ranks share memory and gather and reduce in place
  bool stays_gathered = false;                  ///< full parameters are allocated once, and gathered in place
  bool offload_frozen = false;                  ///< shards of frozen parameters stay on the host between all-gathers
  bool wide_weights = false;                    ///< 16-bit matrices also have a float32 copy
  std::vector<StoredTensor> stored_grads = {};  ///< gradient shards in a store; empty: they are in memory
  /// This rank's rows of each parameter in one group of a store, or in memory. Empty: all are in memory.
  std::vector<StoredTensor> stored_params = {};
};

/// States: sharded -> (unshard) coming -> (wait_for_unshard) gathered -> (reshard) sharded.
class UnitParams {
 public:
  virtual ~UnitParams() = default;
  /// This rank's shard [padded_rows, ...] in param_dtype. Written between steps; begin_sync() and finish_sync() must
  /// follow.
  virtual StoredTensor local_shard(std::size_t param) = 0;
  /// Dtype of the shard in the all-gather.
  virtual at::ScalarType gathered_type(std::size_t param) const = 0;
  /// Call begin_sync() and finish_sync() after local_shard() changed, on every rank equally often and in the same order
  /// of units. begin_sync() sends what the ranks must agree on, so that the messages of all units overlap.
  virtual void begin_sync() {}
  /// True when begin_sync() communicates.
  virtual bool sync_asks_ranks() const { return false; }
  virtual void finish_sync() = 0;
  virtual void unshard() = 0;
  virtual void wait_for_unshard() = 0;
  /// [compute_rows, ...]; only while gathered.
  virtual at::Tensor full(std::size_t param) = 0;
  virtual void reshard() = 0;
};

/// With use_peer_memory the full parameter is the shared-memory segment: each rank writes its rows there, and unshard()
/// only waits for the other ranks. Nothing is copied, and a node holds each parameter once.
/// Otherwise one grouped all-gather per unit writes into newly allocated full tensors or, with stays_gathered, into
/// permanent ones, of which the shards are parts.
/// Collective over context.shard_group.
std::unique_ptr<UnitParams> make_unit_params(const UnitContext& context, const std::vector<ParamLayout>& layouts,
                                             at::ScalarType dtype, const std::string& unit_name);

}  // namespace fsdp
