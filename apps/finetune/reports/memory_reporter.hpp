#pragma once
// Predicts a job's peak memory, measures it, and reports the error of the prediction.
#include <c10/util/Exception.h>

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "apps/finetune/run_setup.hpp"
#include "lib/planning/memory/calibration.hpp"
#include "lib/planning/memory/prediction.hpp"
#include "lib/training/run/run_clock.hpp"

namespace fsdp::detail {

struct MemoryBudget;

class MemoryReporter final : public StepObserver {
 public:
  MemoryReporter(ProcessGroup& world, const RunSetup& setup, const Logger& log)
      : world_(world), setup_(setup), log_(log) {}

  /// Predicts the peak memory of the run's steps, on rank 0, as fsdp-memprobe does for the same options and the
  /// smallest GPU of the job. Collective.
  void predict();
  /// Logs the prediction of predict().
  void tell() const;
  /// How the prediction compares with the GPU's memory or, on CPUs, with what this node has for its ranks.
  enum class Room {
    unknown,  ///< no prediction, as on other ranks, or no known memory
    enough,
    doubtful,  ///< more than there is, but it may go well: a GPU, shorter texts than the longest, swap, a save's copy
    lacking    ///< steps of usual texts alone want more than memory and swap of this node
  };
  Room room() const;
  /// Returns a sentence with the options that would make the job fit. \pre room() is doubtful or lacking
  std::string what_helps() const;
  /// \throws Error (answer_no) on all ranks where the steps cannot fit into the memory of rank 0's node: the kernel
  /// would end them. Collective.
  void require_room() const;
  /// The request and the answer of predict(); null on other ranks and when there is no prediction.
  const MemoryRequest* request() const { return prediction_ ? &request_ : nullptr; }
  const MemoryPrediction* prediction() const { return prediction_ ? &*prediction_ : nullptr; }
  /// The predicted peak bytes of a rank; 0 when unknown and on other ranks.
  std::int64_t predicted_bytes() const { return prediction_ ? prediction_->allocator_peak_bytes() : 0; }
  /// Leaves later steps out of the comparison, because a checkpoint's copy or a validation now uses memory, too.
  void disturb() { was_disturbed_ = true; }
  void after_step(const StepReport& step, bool last) override;
  /// Reports the highest measured memory of all ranks and the prediction. Collective.
  void report(const ModelRuntime& runtime, nlohmann::json& report);

 private:
  void find_gpu_to_predict();
  MemoryBudget budget() const;
  std::int64_t least_bytes() const;
  void log_outside();
  std::string judge(const ModelRuntime& runtime, MemoryOutcome& outcome, nlohmann::json& report);

  ProcessGroup& world_;
  const RunSetup& setup_;
  const Logger& log_;
  MemoryRequest request_;
  std::optional<MemoryPrediction> prediction_;  ///< on rank 0
  StepReport last_step_;
  std::int64_t longest_row_ = 0;  ///< tokens; maximum over the compared steps
  StepSlice compared_{0, 0};      ///< samples of the compared steps
  std::int64_t step_peak_bytes_ = 0;
  int undisturbed_steps_ = 0;
  bool was_disturbed_ = false;
  bool logged_outside_ = false;
};

/// \return the message of a job that ends because a GPU's memory is full
std::string without_room(const c10::OutOfMemoryError& error, const RecordingCounts& graphs);

}  // namespace fsdp::detail
