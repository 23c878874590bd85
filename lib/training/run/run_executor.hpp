#pragma once
// Does what run_schedule.hpp decides: validations, checkpoints, links, exports.
#include <optional>

#include "lib/base/messages/log.hpp"
#include "lib/base/messages/progress.hpp"
#include "lib/training/run/run_parts.hpp"
#include "lib/training/run/run_schedule.hpp"
#include "lib/training/step/trainer.hpp"

namespace fsdp {

/// Collective as a whole: every rank calls every function.
class RunExecutor {
 public:
  /// All of them must outlive the executor.
  struct Input {
    ProcessGroup& world;
    const Logger& log;
    Progress& progress;
    Trainer& trainer;
    RunFolder& folder;
    RunValidation& validation;
    RunOutputs& outputs;
  };

  RunExecutor(const Input& input, const RunRules& rules);
  void after_fisher_batch();
  /// Call when a step has begun that another one may follow before step_done(). \return true if none may
  bool needs_state();
  /// Call before a step is logged. \throws RuntimeFailure after so many consecutive steps that are not finite as the
  /// rules allow
  void step_measured(const StepReport& step);
  /// Call when a step is logged. \param last  no other step follows
  void step_done(bool last);
  /// Passes an event on and executes the actions that answer it. \throws Error subclasses: the job is over
  void handle(const RunEvent& event);

  const RunLife& life() const { return life_; }
  const RunRules& rules() const { return rules_; }
  bool ends_early() const { return fsdp::ends_early(life_, rules_); }

 private:
  void execute(const RunAction& action);
  void end_save(bool wait);
  bool interval_is_over();

  Input run_;
  RunRules rules_;
  RunLife life_;
  std::optional<bool> interval_over_;  ///< answer for the newest step, if it had to be known when the step began
};

}  // namespace fsdp
