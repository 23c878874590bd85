#pragma once
// Finds a rank whose memory, GPU or network gives wrong numbers without an error: every so many steps all ranks compare
// what they must have in common, and compute a micro-batch of a neighbour once more.
//
// Compared are the gathered parameters, the copies of master weights and optimizer states along the replicate axis, the
// numbers by which a step is decided, and the loss of a micro-batch. A flipped bit in the only copy of a shard cannot
// be found: all ranks gather the same wrong number.
#include <cstdint>
#include <filesystem>
#include <string>

#include "lib/base/messages/log.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/training/run/run_clock.hpp"
#include "lib/training/run/step_observer.hpp"
#include "lib/training/step/trainer.hpp"
#include "lib/training/watch/wrong_ranks.hpp"

namespace fsdp::detail {

class StateVerifier final : public StepObserver {
 public:
  /// All of them must outlive the verifier.
  struct Input {
    ModelRuntime& runtime;
    Trainer& trainer;
    RunClock& clock;
    const Logger& log;
    std::int64_t every;                  ///< steps; 0: never
    std::filesystem::path exclude_file;  ///< see exclude_file.hpp; empty: none
    std::string arithmetic;              ///< what rounding changes is compared where it is the same on all ranks
  };

  /// Collective.
  explicit StateVerifier(Input input);

  /// \throws RuntimeFailure on all ranks, naming the ranks whose numbers differ, before the step can be saved
  void after_step(const StepReport& step, bool last) override;

 private:
  void compare(const StepReport& step);
  void compare_with_neighbour();
  std::string state() const;  ///< for errors

  Input input_;
  WrongRanks wrong_;
  bool computes_alike_ = false;     ///< all ranks round in the same way
  std::int64_t verified_step_ = 0;  ///< the last one; 0: none
};

}  // namespace fsdp::detail
