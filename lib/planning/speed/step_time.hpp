#pragma once
// Predicts how long the recorded work of a training step takes on a device with given rates. Free of LibTorch.
//
// On a host, operations run one after the other. A GPU has a compute queue, which the host fills, and a transfer queue
// that runs concurrently: an operation starts once the host has launched it and all earlier operations have finished; a
// transfer starts once the work launched before it has finished; an operation that waits for a transfer starts when the
// transfer has ended.
#include <array>
#include <string>

#include "lib/base/types/index.hpp"
#include "lib/base/types/work.hpp"
#include "lib/planning/speed/rates.hpp"

namespace fsdp {

/// The causes that a step's time is attributed to.
enum class TimeCause : std::uint8_t {
  products,        ///< matrix products at the device's full rate
  small_products,  ///< extra time of products that are too small to reach the full rate
  attention,
  passes,         ///< memory-bound passes: norms, activations, loss
  recomputation,  ///< forward work that the backward pass computes again, of any of the kinds above
  communication,  ///< transfers that no computation overlaps
  update,
  launches,  ///< a GPU idles until its host has launched the next operation
  other
};
inline constexpr int kNumTimeCauses = 9;
/// \return "products", "small products" ...
const char* to_string(TimeCause cause);

struct StepTime {
  double seconds = 0;
  std::array<double, kNumStepParts> parts{};    ///< seconds of each part; they add up to `seconds`
  std::array<double, kNumTimeCauses> causes{};  ///< seconds of each cause; they add up to `seconds`, too
  double of(StepPart part) const { return element(parts, part); }
  double of(TimeCause cause) const { return element(causes, cause); }
};

/// The share of a host that a rank computes with.
struct HostShare {
  double cores = 1;  ///< cores of this rank: its threads, or fewer when the node has more ranks than cores; GPUs: 1
  double busy = 1;   ///< fraction of the host's cores that the job's ranks keep busy
  double ranks = 1;  ///< ranks of the node, which share the host's memory bandwidth; matters with GPUs only
};

StepTime time_of_step(const WorkLog& log, const DeviceRates& rates, const HostShare& share = {});

StepTime time_of_step(const StepWork& work, const DeviceRates& rates, const HostShare& share = {});

/// Lists the causes, largest first, down to 1 %: "products 80 %, passes 12 %".
std::string describe_causes(const StepTime& time);

/// Names the cause that adds most to the time per token of `slower` over `faster`: "communication +34 %"; empty when
/// there is none.
std::string what_costs(const StepTime& slower, double slower_tokens, const StepTime& faster, double faster_tokens);

}  // namespace fsdp
