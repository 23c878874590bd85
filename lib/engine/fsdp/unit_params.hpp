#pragma once
// One unit's parameters on their way between shards and gathered tensors.
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "lib/compute/ops/ops.hpp"
#include "lib/engine/collectives/tensor_collectives.hpp"
#include "lib/engine/fsdp/shard_layout.hpp"
#include "lib/engine/offload/tensor_store.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// What a unit's stores need to know of their surroundings.
struct UnitContext {
  ProcessGroup& shard_group;       ///< ranks the unit is split over
  TensorCollectives& collectives;  ///< the same ranks, for tensors
  const Ops& ops;
  bool use_peer_memory;                         ///< the ranks share memory: gather and reduce in place
  bool offload_frozen = false;                  ///< rows of frozen parameters stay on the host between gathers
  bool wide_weights = false;                    ///< matrices of 16 bits are kept in float32 as well
  std::vector<StoredTensor> stored_grads = {};  ///< shards of the unit's gradients, on a disk; none: they are in memory
};

/// States: sharded -> (unshard) coming -> (wait_for_unshard) gathered -> (reshard) sharded.
class UnitParams {
 public:
  virtual ~UnitParams() = default;
  /// This rank's rows [padded_rows, ...] in the gathered dtype; written between steps, then synced.
  virtual at::Tensor own_rows(std::size_t param) = 0;
  /// In which its rows travel.
  virtual at::ScalarType gathered_type(std::size_t param) const = 0;
  /// Says that own_rows() are new. Every rank calls both equally often, in the same order over the units: what ranks
  /// have to ask each other for goes out in begin_sync(), so that units wait for it together.
  virtual void begin_sync() {}
  /// Whether it asks for anything.
  virtual bool sync_asks_ranks() const { return false; }
  virtual void finish_sync() = 0;
  virtual void unshard() = 0;
  virtual void wait_for_unshard() = 0;
  /// [compute_rows, ...]; only while gathered.
  virtual at::Tensor full(std::size_t param) = 0;
  virtual void reshard() = 0;
};

/// Peer memory: the gathered parameter *is* the shared window, each rank writes its rows of it, and a gather is only a
/// wait for the others' rows. Nothing is copied, and the node holds each parameter once.
/// Collectives otherwise: rows travel straight into freshly allocated gathered tensors, one grouped all-gather per
/// unit. Collective over context.shard_group.
std::unique_ptr<UnitParams> make_unit_params(const UnitContext& context, const std::vector<ParamLayout>& layouts,
                                             at::ScalarType dtype, const std::string& unit_name);

}  // namespace fsdp
