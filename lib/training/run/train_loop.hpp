#pragma once
// The loop of a training run: one step after the other, each reported to observers.
#include <cstdint>
#include <functional>
#include <vector>

#include "lib/training/run/run_executor.hpp"
#include "lib/training/run/step_observer.hpp"
#include "lib/training/step/trainer.hpp"

namespace fsdp::detail {

struct LoopGoal {
  std::int64_t steps = 0;    ///< of the whole run
  std::int64_t samples = 0;  ///< likewise
};

class TrainLoop {
 public:
  /// \param observers    told in this order
  /// \param stop_wanted  asked before each micro-batch; ranks may differ
  TrainLoop(Trainer& trainer, RunExecutor& run, const LoopGoal& goal, std::vector<StepObserver*> observers,
            std::function<bool()> stop_wanted);

  /// No step is left to be made.
  bool is_over() const;
  /// Where the trainer can, a step begins before the observers get the one before it, so that the device works
  /// meanwhile. \return true when it was asked to stop. Collective
  bool run();

 private:
  void finish_step(bool last);

  Trainer& trainer_;
  RunExecutor& run_;
  LoopGoal goal_;
  std::vector<StepObserver*> observers_;
  std::function<bool()> stop_wanted_;
};

}  // namespace fsdp::detail
