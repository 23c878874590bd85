#pragma once
// One unit's gradients on their way from full tensors on every rank to summed shards.
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
  /// Makes the shards, zero, where they are not there yet: who only evaluates needs no room for them. On a disk they
  /// must be held for finish_reduce() and shard(), and for start_reduce() where it accumulates.
  virtual void prepare() = 0;
  /// Makes slots() writable: empty ones after a reduction, the ones at hand while a round is open.
  virtual void begin() = 0;
  virtual std::vector<GradSlot>& slots() = 0;
  /// The gradients of this rank are complete; shard(i) will become, or be added, their sum over the ranks.
  virtual void start_reduce(bool accumulate) = 0;
  /// shard(i) holds the sum; where shards are on the host, after wait_for_transfers(). Slots are not writable until the next
  /// begin(). \param stay  sums that belong to the host stay on the device, as device_sum(), for the caller to take
  /// there
  virtual void finish_reduce(bool stay) = 0;
  /// shard(i), or what has stayed.
  virtual at::Tensor device_sum(std::size_t param) { return shard(param); }
  /// Ends what finish_reduce() has left under way: copies to the host.
  virtual void wait_for_transfers() {}
  /// As after a micro-batch that was the last of its step, or as after one that others follow (`open`), which has
  /// written all slots; whoever says so has had the device do it. Of gradients that nobody else sums.
  virtual void set_state_after_replay(bool open) = 0;
  /// float32 [padded_rows, ...], zero in the padding. After prepare().
  virtual at::Tensor shard(std::size_t param) = 0;
};

/// Buffers in peer memory that all units of an engine share. One rank's writes are read by the others where they lie.
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
  /// Takes the slot for a new round: waits until all ranks have read this rank's last one.
  void begin(int slot);
  void mark_ready(int slot);
  void wait_ready(int slot);
  /// The slot's gradients of all ranks have been read; they leave this process's page table.
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

/// Gradients in GradMemory; the unit may use any of `slots`, in turn, together with other units.
/// \param next_slot  shared by the units that share slots
std::unique_ptr<UnitGrads> make_shared_unit_grads(const UnitContext& context, const std::vector<ParamLayout>& layouts,
                                                  at::ScalarType dtype, std::shared_ptr<GradMemory> memory,
                                                  std::vector<int> slots, std::shared_ptr<std::size_t> next_slot);

/// Gradients in ordinary tensors, reduced by the axis's collectives.
/// \param dtype           that they are written in; float32 where nobody else has some and they are on a device
/// \param shards_on_host  the shards are kept in host memory, whatever the device
/// \param accumulates     start_reduce() will be asked to add
std::unique_ptr<UnitGrads> make_collective_unit_grads(const UnitContext& context,
                                                      const std::vector<ParamLayout>& layouts, at::ScalarType dtype,
                                                      bool shards_on_host, bool accumulates);

}  // namespace fsdp
