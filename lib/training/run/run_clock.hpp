#pragma once
// When a run has to end: a signal, --time-limit, or the scheduler's end of the job. Estimates from the slowest step so
// far whether another one still fits.
#include <chrono>
#include <optional>
#include <string>

#include "lib/base/process/stop_signal.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/training/run/step_observer.hpp"

namespace fsdp::detail {

class RunClock final : public StepObserver {
 public:
  /// \param time_limit_seconds  0: none
  explicit RunClock(double time_limit_seconds);

  /// A line about an end of the job that was over when the run began: of an earlier job, and not followed. Else "".
  const std::string& warning() const { return warning_; }

  /// Keeps time for what follows the end of the run: each limit is so much earlier.
  void reserve(double seconds) { reserved_seconds_ = seconds; }
  bool signalled() const { return signal_.received() != 0; }
  /// This rank's vote to stop: a signal, or too little time for another step and the last save.
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
  void after_verification(double seconds);
  void after_sniff(double seconds);

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
  double verification_seconds_ = 0;
  double sniff_seconds_ = 0;
};

}  // namespace fsdp::detail
