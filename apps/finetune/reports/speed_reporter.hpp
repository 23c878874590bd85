#pragma once
// Predicts the time of a job's steps, measures it, and reports the prediction error.
#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/finetune/reports/memory_reporter.hpp"
#include "apps/finetune/reports/part_timer.hpp"
#include "apps/finetune/run_setup.hpp"
#include "lib/planning/speed/speed_outcome.hpp"
#include "lib/training/run/run_clock.hpp"

namespace fsdp::detail {

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

}  // namespace fsdp::detail
