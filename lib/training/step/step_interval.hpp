#pragma once
// How often something is done in a run: every so many steps, or epochs.
#include <cstdint>
#include <optional>
#include <string_view>

namespace fsdp {

struct StepInterval {
  std::int64_t steps = 0;  ///< optimizer steps
  double epochs = 0;       ///< instead of steps, where it is above 0

  bool never() const { return steps == 0 && epochs == 0; }
  /// The interval in optimizer steps. It need not be whole, because epochs need not end with a step; 0: never.
  /// \param num_rows  rows of an epoch
  double in_steps(std::int64_t num_rows, std::int64_t rows_per_step) const;
};

/// Reads "100" (steps), "1epoch" or "0.25epochs"; "0" is never. \return nothing for other texts
std::optional<StepInterval> parse_step_interval(std::string_view text);

/// True when a multiple of the interval ends with `step`, or has ended since the step before.
/// \param every  steps, as StepInterval::in_steps() returns them
bool falls_on(std::int64_t step, double every);

}  // namespace fsdp
