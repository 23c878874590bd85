#pragma once
// When a run has to end: a signal, --time-limit, or the scheduler's end of the job.
#include <string>

#include "lib/base/stop_signal.hpp"
#include "lib/jobs/finetune/train_loop.hpp"
#include "lib/mpi/process_group.hpp"

namespace fsdp::detail {

class RunClock final : public StepObserver {
 public:
  /// \param time_limit_seconds  0: none
  explicit RunClock(double time_limit_seconds) : time_limit_seconds_(time_limit_seconds) {}

  bool signalled() const { return signal_.received() != 0; }
  /// This rank's word: a signal, or too little time for another step and the last save.
  bool stop_wanted() const { return signalled() || out_of_time(); }
  /// Why all of them stopped. Collective.
  std::string reason(ProcessGroup& world) const;
  double seconds() const;

  void after_step(const StepReport& step, bool) override;
  void after_save(double seconds);

 private:
  bool out_of_time() const;

  double time_limit_seconds_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  StopSignal signal_;
  double slowest_step_seconds_ = 0;
  double save_seconds_ = 0;
};

}  // namespace fsdp::detail
