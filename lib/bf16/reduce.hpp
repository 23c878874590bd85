#pragma once
// A real bf16 all-reduce: are its sums right, how does it add, how fast is it.
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
  /// Collective. Done when it returns.
  virtual void all_reduce(const at::Tensor& bf16) = 0;
};

/// By collectives: NCCL, or the host's. \param synchronize  waits for the device
std::unique_ptr<Bf16Reducer> make_collective_reducer(std::unique_ptr<TensorCollectives> collectives,
                                                     std::function<void()> synchronize);

/// Through memory that all ranks of a node address, as training does on a node: CPU tensors of up to `max_bytes`.
/// Collective. \return null on every rank when the ranks cannot share memory
std::unique_ptr<Bf16Reducer> make_shared_memory_reducer(ProcessGroup& group, std::int64_t max_bytes);

struct ReduceBudget {
  std::int64_t bytes = std::int64_t{64} << 20;  ///< the largest tensor; a slow network gets a smaller one
  double seconds = 0.3;
};

/// Checks and times the reducer over `group`. Collective. ReduceFacts::transport stays empty.
ReduceFacts measure_reduce(ProcessGroup& group, Bf16Reducer& reducer, c10::Device device, const ReduceBudget& budget);

namespace detail {

/// What rank `rank` of `ranks` contributes as element `index`: whole numbers from -2 to 2, so few of them not 0 that
/// every partial sum, in any order, is a whole number up to 256 in size, which bf16 holds exactly.
int exact_value(int rank, int ranks, std::int64_t index);
/// The sum over all ranks.
int exact_sum(int ranks, std::int64_t index);
/// exact_value() repeats after so many elements.
std::int64_t exact_period(int ranks);

/// Nodes with one color are neighbours in a ring: 0-1, 2-3, ... in round 0, 1-2, 3-4, ... in round 1, and where the
/// number of nodes is odd, the last and the first, left over until then, in round 2.
int pair_color(int node, int nodes, int round);

}  // namespace detail
}  // namespace fsdp
