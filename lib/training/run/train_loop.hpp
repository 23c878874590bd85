#pragma once
// One training run: step after step, and who is told of each.
#include <functional>
#include <vector>

#include "lib/training/step/trainer.hpp"

namespace fsdp::detail {

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

class TrainLoop {
 public:
  /// \param observers    told in this order
  /// \param stop_wanted  asked on every rank before each micro-batch
  /// \param ends_early   asked before each step, the same answer on every rank: the run is over before its last step
  TrainLoop(Trainer& trainer, const LoopGoal& goal, std::vector<StepObserver*> observers,
            std::function<bool()> stop_wanted, std::function<bool()> ends_early)
      : trainer_(trainer),
        goal_(goal),
        observers_(std::move(observers)),
        stop_wanted_(std::move(stop_wanted)),
        ends_early_(std::move(ends_early)) {}

  /// No step is left to be made.
  bool is_over() const { return reached(trainer_.state()); }
  /// \return true when it was asked to stop. Collective
  bool run() {
    const auto& state = trainer_.state();
    while (!reached(state) && !ends_early_()) {
      const auto step = trainer_.step(goal_.samples - state.samples, stop_wanted_);
      if (step.stopped) return true;
      for (auto* observer : observers_) observer->after_step(step, reached(state));
    }
    return false;
  }

 private:
  bool reached(const RunState& state) const { return state.step >= goal_.steps || state.samples >= goal_.samples; }

  Trainer& trainer_;
  LoopGoal goal_;
  std::vector<StepObserver*> observers_;
  std::function<bool()> stop_wanted_;
  std::function<bool()> ends_early_;
};

}  // namespace fsdp::detail
