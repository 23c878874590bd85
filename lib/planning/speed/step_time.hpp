#pragma once
// How long a step's work takes on a device of given rates. Free of LibTorch.
//
// A host's operations come one after the other. A GPU has a queue that its host fills and one for transfers, which run
// beside: an operation begins when its host has asked for it and those before it are done; a transfer when what was
// asked for before it is done; and whoever waits for a transfer begins when it has ended.
#include <array>
#include <string>

#include "lib/base/work.hpp"
#include "lib/planning/speed/rates.hpp"

namespace fsdp {

/// What takes the time.
enum class TimeCause : std::uint8_t {
  products,        ///< at the full rate
  small_products,  ///< more, where products are too small for it
  attention,
  passes,         ///< over memory: norms, activations, loss
  recomputation,  ///< all of the above, computed once more
  communication,  ///< that nothing is computed beside
  update,
  launches,  ///< a GPU that waits for its host
  other
};
inline constexpr int kNumTimeCauses = 9;
/// "products", "small products" ...
const char* to_string(TimeCause cause);

struct StepTime {
  double seconds = 0;
  std::array<double, kNumStepParts> parts{};    ///< add up to `seconds`
  std::array<double, kNumTimeCauses> causes{};  ///< likewise
  double of(StepPart part) const { return parts[static_cast<std::size_t>(part)]; }
  double of(TimeCause cause) const { return causes[static_cast<std::size_t>(cause)]; }
};

/// What a rank has of its host; a GPU is one's own.
struct HostShare {
  double cores = 1;  ///< its threads, or less where ranks are more than cores
  double busy = 1;   ///< part of the host's cores that the job's ranks keep busy
};

StepTime time_of_step(const WorkLog& log, const DeviceRates& rates, const HostShare& share = {});

StepTime time_of_step(const StepWork& work, const DeviceRates& rates, const HostShare& share = {});

/// "products 80 %, passes 12 %": the largest first, down to a hundredth.
std::string describe_causes(const StepTime& time);

/// What makes `slower` slower per token than `faster`, the largest difference: "communication +34 %"; empty when none.
std::string what_costs(const StepTime& slower, double slower_tokens, const StepTime& faster, double faster_tokens);

}  // namespace fsdp
