#pragma once
// When a run has to end: a signal, --time-limit, or the scheduler's end of the job. What is not started any more is
// foreseen by what took longest until now.
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/stop_signal.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/training/step/trainer.hpp"

namespace fsdp::detail {

// One training run: step after step, and who is told of each.

/// Listens; decisions about a run are in run_schedule.hpp.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  /// Called after a step, on every rank. \param last  no other step follows
  virtual void after_step(const StepReport& step, bool last) = 0;
};

struct LoopGoal {
  std::int64_t steps = 0;    ///< of the whole run
  std::int64_t samples = 0;  ///< likewise
};

/// Calls to the executor of a run, on every rank.
struct LoopHooks {
  std::function<void(const StepReport&)> measured;  ///< before the observers are told of a step
  std::function<void(bool last)> done;              ///< after they were told
  std::function<bool()> stop_wanted;                ///< asked before each micro-batch; ranks may differ
  std::function<bool()> needs_state;                ///< asked when a step has begun that another one may follow before
                                                    ///< the observers are told of it: true if none may; ranks agree
  std::function<bool()> ends_early;                 ///< asked before each step; ranks agree
};

class TrainLoop {
 public:
  /// \param observers  told in this order
  TrainLoop(Trainer& trainer, const LoopGoal& goal, std::vector<StepObserver*> observers, LoopHooks hooks)
      : trainer_(trainer), goal_(goal), observers_(std::move(observers)), hooks_(std::move(hooks)) {}

  /// No step is left to be made.
  bool is_over() const { return reached(trainer_.state()); }
  /// Where the trainer can, a step begins before the observers are told of the one before it, so that the device works
  /// meanwhile. \return true when it was asked to stop. Collective
  bool run() {
    const auto& state = trainer_.state();
    while (!reached(state) && !hooks_.ends_early()) {
      const auto before = trainer_.steps_under_way();
      const bool stopped = !trainer_.begin_step(goal_.samples - state.samples, hooks_.stop_wanted);
      if (before > 0) finish_step(false);
      if (stopped) return true;
      if (trainer_.steps_under_way() == 0) continue;  // undone
      if (reached(state) || !trainer_.begins_early() || hooks_.needs_state()) finish_step(reached(state));
    }
    return false;
  }

 private:
  void finish_step(bool last) {
    const auto step = trainer_.finish_step();
    hooks_.measured(step);
    for (auto* observer : observers_) observer->after_step(step, last);
    hooks_.done(last);
  }
  bool reached(const RunState& state) const { return state.step >= goal_.steps || state.samples >= goal_.samples; }

  Trainer& trainer_;
  LoopGoal goal_;
  std::vector<StepObserver*> observers_;
  LoopHooks hooks_;
};

class RunClock final : public StepObserver {
 public:
  /// \param time_limit_seconds  0: none
  explicit RunClock(double time_limit_seconds);

  /// A line about an end of the job that was over when the run began: of an earlier job, and not followed. Else "".
  const std::string& warning() const { return warning_; }

  /// Keeps time for what follows the end of the run: each limit is so much earlier.
  void reserve(double seconds) { reserved_seconds_ = seconds; }
  bool signalled() const { return signal_.received() != 0; }
  /// This rank's word: a signal, or too little time for another step and the last save.
  /// \param steps_under_way  that must end first
  bool stop_wanted(std::size_t steps_under_way = 0) const;
  /// True if the run must end during a validation: the step is done, so only the last save must still fit.
  bool must_end() const { return signalled() || seconds_left() < seconds_to_save(); }
  /// True if the run must end when nothing is left to save.
  bool is_over() const { return signalled() || seconds_left() < 5.0; }
  /// The answer of this rank: none of the job's validations until now took longer than there is time for.
  bool has_time_to_validate() const { return seconds_left() >= validation_seconds_ + seconds_to_save(); }
  /// Why all of them stopped. Collective.
  std::string reason(ProcessGroup& world) const;
  double seconds() const;

  void after_step(const StepReport& step, bool) override;
  void after_save(double seconds);
  void after_validation(double seconds);

 private:
  double seconds_left() const;
  double seconds_to_save() const;

  double time_limit_seconds_;
  double reserved_seconds_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  StopSignal signal_;
  std::optional<std::chrono::system_clock::time_point> end_;  ///< of the job
  std::string warning_;
  double slowest_step_seconds_ = 0;
  double save_seconds_ = 0;
  double validation_seconds_ = 0;
};

}  // namespace fsdp::detail
