#pragma once
// Predicts the time of a job's steps, measures it, and reports the error of the prediction; also reports the throughput
// of the disk that optimizer states are offloaded to.
#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/finetune/memory_reporter.hpp"
#include "apps/finetune/run_setup.hpp"
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

class SpeedReporter final : public StepObserver {
 public:
  SpeedReporter(ProcessGroup& world, const RunSetup& setup, const MemoryReporter& memory, const PartTimer& timer,
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
  const MemoryReporter& memory_;
  const PartTimer& timer_;
  const Logger& log_;
  SpeedOutcome outcome_;
  bool is_predicted_ = false;
  std::vector<Timed> steps_;
};

/// Logs nothing when no optimizer state is on disk.
class OffloadReporter final : public StepObserver {
 public:
  explicit OffloadReporter(const RunContext& context);
  /// Warns once when training waits for the disk most of the time.
  void after_step(const StepReport& step, bool last) override;
  /// Logs a summary line and adds "offload" to the report.
  void report(nlohmann::json& report) const;

 private:
  double rate() const { return update_seconds_ > 0 ? bytes_ / update_seconds_ : 0; }

  const RunContext& context_;
  TensorStore* store_;
  double seconds_ = 0, wait_seconds_ = 0;
  double update_seconds_ = 0, bytes_ = 0;  ///< of updates alone
  int steps_ = 0;
  bool warned_ = false;
};

}  // namespace fsdp::detail
