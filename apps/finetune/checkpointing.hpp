#pragma once
// Decides which training states are saved as checkpoints, and when.
#include "apps/finetune/run_record.hpp"
#include "lib/training/run/train_loop.hpp"
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

/// Saves when --save-every and --save-interval-minutes say so, and at the end. What falls on the same step as one of
/// --eval-every's validations is saved before it, so that a job that ends meanwhile has lost no step; the best when it
/// is found.
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
  /// The validation that an earlier job has left, before the first step of this one.
  /// \param checkpoint  as for save_validation()
  void make_up_for_validation(const std::filesystem::path& checkpoint);
  void after_step(const StepReport& step, bool last) override;
  /// More of what Child-Tuning's D is chosen by has been measured.
  void after_fisher_batch();
  /// The checkpoint of the state at the end, where it is to be kept. \param stopped  by a signal or for want of time
  /// \throws IoError when it could not be saved
  void save_at_the_end(bool stopped);
  /// After the last validation, which may come after the last save: `best`, and what checkpoints know of validations.
  /// \param checkpoint  that holds the state as it is now, where is_saved()
  /// \throws IoError when the best could not be saved
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
