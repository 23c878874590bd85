#pragma once
// Measures the parts of a step.
#include <array>
#include <chrono>
#include <string_view>
#include <vector>

#include "lib/compute/device/observer.hpp"
#include "lib/planning/speed/speed_outcome.hpp"

namespace fsdp::detail {

/// Sums up the time of each part of a step.
class PartTimer final : public EngineObserver {
 public:
  void begin(std::string_view what, std::string_view category) override;
  void end() override;
  /// Seconds per part since the current step began to read its tokens.
  const std::array<double, kNumStepParts>& parts() const { return parts_; }

 private:
  using Clock = std::chrono::steady_clock;
  void book();

  std::vector<StepPart> open_;
  std::array<double, kNumStepParts> parts_{};
  Clock::time_point since_;
};

}  // namespace fsdp::detail
