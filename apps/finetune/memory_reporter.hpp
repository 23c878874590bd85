#pragma once
// Predicts a job's peak memory, measures it, and reports the error of the prediction.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "apps/finetune/run_setup.hpp"
#include "lib/planning/memory/calibration.hpp"
#include "lib/planning/memory/prediction.hpp"
#include "lib/training/run/train_loop.hpp"

namespace fsdp::detail {

class MemoryReporter final : public StepObserver {
 public:
  MemoryReporter(ProcessGroup& world, const RunSetup& setup, const Logger& log)
      : world_(world), setup_(setup), log_(log) {}

  /// Of the run's own steps, on the first rank: what fsdp-memprobe says with the same options. Says it.
  void predict();
  /// What was asked and answered, on the first rank; null elsewhere and where there is no answer.
  const MemoryRequest* request() const { return prediction_ ? &request_ : nullptr; }
  const MemoryPrediction* prediction() const { return prediction_ ? &*prediction_ : nullptr; }
  /// Of the peak of a rank, as predicted; 0: not known, or not the first rank.
  std::int64_t predicted_bytes() const { return prediction_ ? prediction_->allocator_peak_bytes() : 0; }
  /// Excludes later steps from the comparison: a checkpoint's copy or a validation now uses memory beside them.
  void disturb() { was_disturbed_ = true; }
  void after_step(const StepReport& step, bool last) override;
  /// What the run took, the highest of all ranks, and what had been predicted. Collective.
  void report(const ModelRuntime& runtime, nlohmann::json& report);

 private:
  void describe();
  std::string judge(const ModelRuntime& runtime, MemoryOutcome& outcome, nlohmann::json& report);

  ProcessGroup& world_;
  const RunSetup& setup_;
  const Logger& log_;
  MemoryRequest request_;
  std::optional<MemoryPrediction> prediction_;  ///< on rank 0
  StepReport last_step_;
  std::int64_t longest_row_ = 0;  ///< tokens, over the steps that are counted
  std::int64_t step_peak_bytes_ = 0;
  int undisturbed_steps_ = 0;
  bool was_disturbed_ = false;
};

}  // namespace fsdp::detail
