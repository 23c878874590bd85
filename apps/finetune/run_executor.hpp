#pragma once
// Does what lib/training/run/run_schedule.hpp decides: validations, checkpoints, links, exports.
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "apps/finetune/run_record.hpp"
#include "apps/finetune/validation.hpp"
#include "lib/training/run/run_clock.hpp"
#include "lib/training/run/run_schedule.hpp"

namespace fsdp::detail {

/// Collective as a whole: every rank calls every function.
class RunExecutor {
 public:
  /// Writers of the files that a job leaves when no step is left.
  struct Outputs {
    std::function<void()> write_adapter;
    std::function<bool()> export_files;  ///< false: stopped by a signal
  };

  /// \param continues  the job goes on with a run that has the folder
  RunExecutor(const RunContext& context, RunRecord& record, Validation& validation, MemoryReporter& memory,
              bool continues, Outputs outputs);
  /// Opens the run's folder, unless an older run has it.
  /// \param taken     the checkpoint whose state the job has; empty: the state is new
  /// \param is_saved  `taken` was saved by fsdp-finetune, so that the state need not be saved once more
  void start(const std::filesystem::path& taken, bool is_saved);
  void after_fisher_batch();
  /// Call when a step has begun that another one may follow before step_done(). \return true if none may
  bool needs_state();
  /// Call before a step is logged. \throws RuntimeFailure after --max-nonfinite-steps consecutive steps that are not
  /// finite
  void step_measured(const StepReport& step);
  /// Call when a step is logged. \param last  no other step follows
  void step_done(bool last);
  /// Passes an event on and executes the actions that answer it. \throws Error subclasses: the job is over
  void handle(const RunEvent& event);

  const RunLife& life() const { return life_; }
  bool ends_early() const { return fsdp::ends_early(life_, rules_); }
  /// The reason why --patience or the pruning of a sweep ended the run before its last step, for messages; empty when
  /// neither did.
  std::string why_early() const;

 private:
  void execute(const RunAction& action);
  void end_save(bool wait);
  /// Makes a link on rank 0. A failure is a warning, once for each kind of action. \return false on failure
  bool make_link(const RunAction& action);
  [[noreturn]] void end_without_state(const std::string& why);
  bool interval_is_over();

  const RunContext& context_;
  RunRecord& record_;
  Validation& validation_;
  MemoryReporter& memory_;
  Outputs outputs_;
  RunRules rules_;
  RunLife life_;
  std::optional<bool> interval_over_;  ///< answer for the newest step, if it had to be known when the step began
  std::set<RunActionKind> warned_;
};

}  // namespace fsdp::detail
