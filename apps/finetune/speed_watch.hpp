#pragma once
// How fast a job's steps will be, how fast they were, and how far the two are apart.
#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/finetune/memory_watch.hpp"
#include "lib/compute/device/observer.hpp"
#include "lib/planning/speed/speed_outcome.hpp"
#include "lib/training/run/train_loop.hpp"

namespace fsdp::detail {

/// Adds up the time of a step's parts.
class PartTimer final : public EngineObserver {
 public:
  void begin(std::string_view what, std::string_view category) override;
  void end() override;
  /// Since the last step began to read its tokens, in seconds.
  const std::array<double, kNumStepParts>& parts() const { return parts_; }

 private:
  using Clock = std::chrono::steady_clock;
  void book();

  std::vector<StepPart> open_;
  std::array<double, kNumStepParts> parts_{};
  Clock::time_point since_;
};

class SpeedWatch final : public StepObserver {
 public:
  SpeedWatch(ProcessGroup& world, const RunSetup& setup, const MemoryWatch& memory, const PartTimer& timer,
             const Logger& log)
      : world_(world), setup_(setup), memory_(memory), timer_(timer), log_(log) {}

  /// Of the run's own steps, on the first rank; says it. Collective.
  /// \param peak_flops  of a rank's device, measured on a host; 0: not known
  void predict(double peak_flops);
  void after_step(const StepReport& step, bool last) override;
  /// How right it was: into RUN/speed.json, on the first rank.
  void report(nlohmann::json& report);

 private:
  struct Timed {
    double seconds, tokens;
    std::int64_t longest_row;
    std::array<double, kNumStepParts> parts;
  };
  HostShare share_of_rank();
  StepTime time_of(std::int64_t tokens_per_row) const;
  std::vector<Timed> usual_steps() const;

  ProcessGroup& world_;
  const RunSetup& setup_;
  const MemoryWatch& memory_;
  const PartTimer& timer_;
  const Logger& log_;
  SpeedOutcome outcome_;
  bool is_predicted_ = false;
  std::vector<Timed> steps_;
};

}  // namespace fsdp::detail
