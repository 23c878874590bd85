#pragma once
// Tests real collectives on bf16 tensors, those of sharded training among them: whether what arrives is right, in which
// precision sums are made, and how fast they are.
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/bf16/facts.hpp"
#include "lib/engine/collectives/tensor_collectives.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// Collectives of a group. What they make is complete on return.
class Bf16Collectives {
 public:
  virtual ~Bf16Collectives() = default;
  /// Sums tensors in place.
  virtual void all_reduce(const at::Tensor& bf16) = 0;
  /// \param shard  bf16 [n] \param full  bf16 [n * ranks], the shards by rank
  virtual void all_gather(const at::Tensor& shard, const at::Tensor& full) = 0;
  /// \param full  bf16 [n * ranks] \param shard  float32 [n], this rank's part of the sum
  virtual void reduce_scatter(const at::Tensor& full, const at::Tensor& shard) = 0;
};

/// NCCL's or the host's. \param synchronize  waits for the device
std::unique_ptr<Bf16Collectives> make_bf16_collectives(std::shared_ptr<TensorCollectives> collectives,
                                                       std::function<void()> synchronize);

/// For CPU tensors of up to `max_bytes`, through memory shared by all ranks of a node, as training does within a
/// node. Collective. \return null on every rank when the ranks cannot share memory
std::unique_ptr<Bf16Collectives> make_shared_memory_collectives(ProcessGroup& group, std::int64_t max_bytes);

struct CollectiveBudget {
  std::int64_t bytes = std::int64_t{64} << 20;  ///< size of the largest tensor; on a slow network smaller ones are used
  double seconds = 0.3;
  int checks = 1;  ///< of what arrives, each with other numbers: an unreliable link shows in some of them only
};

/// Checks and times all-reduces over `group`. Collective. Leaves ReduceFacts::transport empty.
ReduceFacts measure_reduce(ProcessGroup& group, Bf16Collectives& collectives, c10::Device device,
                           const CollectiveBudget& budget);
/// The same of all-gathers and reduce-scatters.
TransferFacts measure_gather(ProcessGroup& group, Bf16Collectives& collectives, c10::Device device,
                             const CollectiveBudget& budget);
TransferFacts measure_scatter(ProcessGroup& group, Bf16Collectives& collectives, c10::Device device,
                              const CollectiveBudget& budget);

/// A part of an all-gather that arrived otherwise than it was sent.
struct WrongPart {
  int sender;        ///< world rank
  std::string text;  ///< "element 3 is 1, what was sent is 2"
};

/// All-gathers `part` bf16 elements of each rank, several times, each with other numbers. Collective.
/// \return what this rank got wrong, the first of each sender
std::vector<WrongPart> check_gather(ProcessGroup& group, Bf16Collectives& collectives, c10::Device device,
                                    std::int64_t part, int checks);
/// The same of reduce-scatters, with `part` elements for each rank, and of all-reduces. \return "" or a text as above
std::string check_scatter(ProcessGroup& group, Bf16Collectives& collectives, c10::Device device, std::int64_t part,
                          int checks);
std::string check_reduce(ProcessGroup& group, Bf16Collectives& collectives, c10::Device device, std::int64_t elements,
                         int checks);

namespace detail {

/// \return the contribution of rank `rank` of `ranks` to element `index`: a whole number from -2 to 2. Few are nonzero,
/// so that every partial sum, in any order, is a whole number of magnitude up to 256, which bf16 represents exactly.
int exact_value(int rank, int ranks, std::int64_t index);
/// \return the sum of exact_value() over all ranks
int exact_sum(int ranks, std::int64_t index);
/// \return the period of exact_value() in `index`
std::int64_t exact_period(int ranks);

/// \return a color that pairs neighbouring nodes of a ring: 0-1, 2-3, ... in round 0; 1-2, 3-4, ... in round 1; with an
/// odd number of nodes, the last and the first, which are still unpaired, in round 2
int pair_color(int node, int nodes, int round);

}  // namespace detail
}  // namespace fsdp
