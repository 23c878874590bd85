#pragma once
// Gradients of one unit: full tensors on every rank before the reduce-scatter, summed shards after it.
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "lib/compute/tensor/layer.hpp"
#include "lib/engine/fsdp/unit_params.hpp"

namespace fsdp {

/// Cycle: begin -> layers write into slots() -> (begin -> write)* -> start_reduce -> finish_reduce.
class UnitGrads {
 public:
  virtual ~UnitGrads() = default;
  /// Allocates the shards, zero, on the first call, so that evaluation alone needs no memory for them. Shards in a
  /// store must be held during finish_reduce() and shard(), and during start_reduce() if it accumulates.
  virtual void prepare() = 0;
  /// Makes slots() writable. After a reduction they are empty; before it, further calls keep what was written.
  virtual void begin() = 0;
  virtual std::vector<GradSlot>& slots() = 0;
  /// Starts the reduce-scatter of this rank's gradients into shard(i). \param accumulate  adds to shard(i) instead of
  /// overwriting it
  virtual void start_reduce(bool accumulate) = 0;
  /// Waits for the reduction. shard(i) then holds the sum; a shard on the host does after wait_for_transfers(). Slots
  /// are not writable until the next begin(). \param stay  sums for shards on the host stay on the device as
  /// device_sum(); the caller copies them
  virtual void finish_reduce(bool stay) = 0;
  /// The sum that stayed on the device, see finish_reduce(); otherwise shard(param).
  virtual at::Tensor device_sum(std::size_t param) { return shard(param); }
  /// Copies a sum, float32 on the device, to shard(param). \return the copy in progress; null: it is done
  virtual std::unique_ptr<Transfer> send(std::size_t param, const at::Tensor& sum);
  /// Waits for the copies to the host that finish_reduce() started.
  virtual void wait_for_transfers() {}
  /// Sets the host-side state after a CUDA graph has run the device's part of a micro-batch. Only on a shard axis of
  /// one rank. \param open  true: more micro-batches of the step follow, and all slots were written; false: the step's
  /// last micro-batch ran
  virtual void set_state_after_replay(bool open) = 0;
  /// [padded_rows, ...], zero in the padding: float32, or the shard dtype of make_collective_unit_grads(). After
  /// prepare().
  virtual at::Tensor shard(std::size_t param) = 0;
};

/// Gradient buffers in shared memory, used by all units of an engine. Ranks read each other's buffers in place.
///
/// Without accumulation two buffers are enough for all blocks: sums are taken one unit late, so while one unit's
/// gradients are being read, the next one's are being written. The root unit, whose gradients arrive first (head) and
/// last (embedding), has its own. With accumulation every unit has its own.
class GradMemory {
 public:
  GradMemory(ProcessGroup& group, const Ops& ops, const std::vector<std::size_t>& slot_bytes);
  GradMemory(const GradMemory&) = delete;
  GradMemory& operator=(const GradMemory&) = delete;
  ~GradMemory();

  std::byte* address(int rank, int slot) const;
  /// Reserves the slot for new gradients: waits until all ranks have read the previous ones.
  void begin(int slot);
  void mark_ready(int slot);
  void wait_ready(int slot);
  /// Tells the other ranks that this rank has read their gradients in the slot, and unmaps them here.
  void mark_consumed(int slot);

 private:
  SharedCounter& ready(int rank, int slot);
  SharedCounter& consumed(int rank, int slot);

  ProcessGroup& group_;
  const Ops& ops_;
  int num_slots_;
  std::vector<std::size_t> offsets_;
  std::vector<std::size_t> slot_bytes_;
  std::size_t rank_bytes_ = 0;
  std::unique_ptr<PeerMemory> memory_;
  std::vector<std::uint64_t> rounds_;
};

/// Bytes a unit's gradients take in one GradMemory slot.
std::size_t grad_slot_bytes(const std::vector<ParamLayout>& layouts, at::ScalarType dtype, int ranks);

/// Gradients in GradMemory. The unit takes its turn with other units in using `slots`.
/// \param next_slot  shared by the units that share slots
std::unique_ptr<UnitGrads> make_shared_unit_grads(const UnitContext& context, const std::vector<ParamLayout>& layouts,
                                                  at::ScalarType dtype, std::shared_ptr<GradMemory> memory,
                                                  std::vector<int> slots, std::shared_ptr<std::size_t> next_slot);

/// Gradients in ordinary tensors, reduced by the axis's collectives.
/// \param dtype           of the buffers that layers write
/// \param shard_dtype     float32, or `dtype`; with `dtype` start_reduce() must not accumulate, and shards are on the
///                        device
/// \param shards_on_host  the shards are kept in host memory, whatever the device
/// \param accumulates     start_reduce() may be called with accumulate
std::unique_ptr<UnitGrads> make_collective_unit_grads(const UnitContext& context,
                                                      const std::vector<ParamLayout>& layouts, at::ScalarType dtype,
                                                      at::ScalarType shard_dtype, bool shards_on_host,
                                                      bool accumulates);

}  // namespace fsdp
