#pragma once
// Predicts the time of a job's steps, measures it, and reports the prediction error. Also reports the throughput of the
// disk that optimizer states are offloaded to.
#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/finetune/memory_reporter.hpp"
#include "apps/finetune/run_setup.hpp"
#include "lib/compute/device/observer.hpp"
#include "lib/planning/speed/speed_outcome.hpp"
#include "lib/training/run/run_clock.hpp"

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

class SpeedReporter final : public StepObserver {
 public:
  SpeedReporter(const RunContext& context, const MemoryReporter& memory, const PartTimer& timer)
      : SpeedReporter(context.world, context.setup, memory, timer, context.log, context.progress, context.nccl_log) {}
  SpeedReporter(ProcessGroup& world, const RunSetup& setup, const MemoryReporter& memory, const PartTimer& timer,
                const Logger& log, Progress& progress, NcclLog* nccl_log = nullptr)
      : world_(world),
        setup_(setup),
        memory_(memory),
        timer_(timer),
        log_(log),
        progress_(progress),
        nccl_log_(nccl_log) {}

  /// Predicts and logs the time of a step and of the steps to go, on rank 0. Collective.
  /// \param peak_flops  FLOP/s of a rank's device, measured on CPUs; 0: unknown
  void predict(double peak_flops, std::int64_t steps_to_go);
  /// The findings of predict(): seconds of a step and of the steps to go, and hours that are charged for; or null.
  nlohmann::json predicted(std::int64_t steps_to_go) const;
  /// Why predict() found nothing; empty: it did, or there is no memory prediction, which says why itself.
  const std::string& why_not() const { return why_not_; }
  void after_step(const StepReport& step, bool last) override;
  /// Writes the prediction error to RUN/speed.json on rank 0.
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
  void warn_if_slow();
  void not_predicted(const std::string& why);

  ProcessGroup& world_;
  const RunSetup& setup_;
  const MemoryReporter& memory_;
  const PartTimer& timer_;
  const Logger& log_;
  Progress& progress_;
  NcclLog* nccl_log_;
  SpeedOutcome outcome_;
  bool is_predicted_ = false;
  std::string why_not_;
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
  double update_seconds_ = 0, bytes_ = 0;  ///< in optimizer updates only
  int steps_ = 0;
  bool warned_ = false;
};

}  // namespace fsdp::detail
