#pragma once
// Decides which training states are saved as checkpoints, and when.
#include "apps/finetune/run_record.hpp"
#include "lib/training/run/run_clock.hpp"
#include "lib/training/step/nonfinite_steps.hpp"

namespace fsdp::detail {

/// Marks the state before each step as proven when the step's loss is finite, and as doubtful when the loss is not.
/// The first step that updates the model opens the record.
class HealthCheck final : public StepObserver {
 public:
  HealthCheck(const RunContext& context, RunRecord& record)
      : context_(context), record_(record), nonfinite_(context.setup.options.max_nonfinite_steps) {}
  /// \throws RuntimeFailure after --max-nonfinite-steps consecutive steps that are not finite
  void after_step(const StepReport& step, bool last) override;
  /// True while the most recent steps were not finite.
  bool fails() const { return nonfinite_.any(); }
  /// Computes a loss with the final weights, because no later step checks the last update. \throws RuntimeFailure when
  /// that loss is not finite
  void prove_the_last_update();

 private:
  const RunContext& context_;
  RunRecord& record_;
  NonFiniteSteps nonfinite_;
};

class Validation;

/// Saves checkpoints when --save-every and --save-interval-minutes say so, and at the end. When a save and an
/// --eval-every validation fall on the same step, the save comes first, so that no step is lost if the job ends during
/// the validation. A new best state is saved as soon as a validation has found it.
class Checkpoints final : public StepObserver {
 public:
  Checkpoints(const RunContext& context, RunRecord& record, HealthCheck& health, MemoryReporter& memory, bool is_saved,
              Validation& validation)
      : context_(context),
        record_(record),
        health_(health),
        memory_(memory),
        is_saved_(is_saved),
        validation_(validation) {}
  /// Runs the validation that an earlier job had to leave out, before the first step of this job.
  /// \param checkpoint  as for save_validation()
  void make_up_for_validation(const std::filesystem::path& checkpoint);
  void after_step(const StepReport& step, bool last) override;
  /// Call after each batch of the Fisher pass of Child-Tuning-D: saves the measurements when --save-interval-minutes
  /// have passed.
  void after_fisher_batch();
  /// Saves the final state unless --no-final-save leaves it out. \param stopped  by a signal or a time limit
  /// \throws IoError when it could not be saved
  void save_at_the_end(bool stopped);
  /// Updates `best` and the validation state in checkpoints after the last validation, which may come after the last
  /// save.
  /// \param checkpoint  holds the current state when is_saved()
  /// \throws IoError when the best checkpoint could not be saved
  void save_validation(const std::filesystem::path& checkpoint);
  /// True when record.last_checkpoint() holds the current state.
  bool is_saved() const { return is_saved_; }

 private:
  bool is_due(bool last);
  bool interval_is_over();

  const RunContext& context_;
  RunRecord& record_;
  HealthCheck& health_;
  MemoryReporter& memory_;
  bool is_saved_;
  Validation& validation_;
  bool waits_ = false;  ///< a save is postponed until losses are finite again
};

}  // namespace fsdp::detail
