#include "lib/training/run/train_loop.hpp"

#include <utility>

namespace fsdp::detail {

TrainLoop::TrainLoop(Trainer& trainer, RunExecutor& run, const LoopGoal& goal, std::vector<StepObserver*> observers,
                     std::function<bool()> stop_wanted)
    : trainer_(trainer),
      run_(run),
      goal_(goal),
      observers_(std::move(observers)),
      stop_wanted_(std::move(stop_wanted)) {}

bool TrainLoop::is_over() const {
  const auto& state = trainer_.state();
  return state.step >= goal_.steps || state.samples >= goal_.samples;
}

bool TrainLoop::run() {
  while (!is_over() && !run_.ends_early()) {
    const auto before = trainer_.steps_under_way();
    const bool stopped = !trainer_.begin_step(goal_.samples - trainer_.state().samples, stop_wanted_);
    if (before > 0) finish_step(false);
    if (stopped) return true;
    if (trainer_.steps_under_way() == 0) continue;  // undone
    if (is_over() || !trainer_.begins_early() || run_.needs_state()) finish_step(is_over());
  }
  return false;
}

void TrainLoop::finish_step(bool last) {
  const auto step = trainer_.finish_step();
  run_.step_measured(step);
  for (auto* observer : observers_) observer->after_step(step, last);
  run_.step_done(last);
}

}  // namespace fsdp::detail
