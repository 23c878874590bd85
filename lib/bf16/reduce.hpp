#pragma once
// Tests a real bf16 all-reduce: whether its sums are correct, in which precision it adds, and how fast it is.
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lib/bf16/facts.hpp"
#include "lib/engine/collectives/tensor_collectives.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// Sums bf16 tensors over a group, in place.
class Bf16Reducer {
 public:
  virtual ~Bf16Reducer() = default;
  /// Collective. The sum is complete on return.
  virtual void all_reduce(const at::Tensor& bf16) = 0;
};

/// Reduces through collectives: NCCL's or the host's. \param synchronize  waits for the device
std::unique_ptr<Bf16Reducer> make_collective_reducer(std::unique_ptr<TensorCollectives> collectives,
                                                     std::function<void()> synchronize);

/// Reduces CPU tensors of up to `max_bytes` through memory shared by all ranks of a node, as training does within a
/// node. Collective. \return null on every rank when the ranks cannot share memory
std::unique_ptr<Bf16Reducer> make_shared_memory_reducer(ProcessGroup& group, std::int64_t max_bytes);

struct ReduceBudget {
  std::int64_t bytes = std::int64_t{64} << 20;  ///< size of the largest tensor; on a slow network smaller ones are used
  double seconds = 0.3;
};

/// Checks and times the reducer over `group`. Collective. Leaves ReduceFacts::transport empty.
ReduceFacts measure_reduce(ProcessGroup& group, Bf16Reducer& reducer, c10::Device device, const ReduceBudget& budget);

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
