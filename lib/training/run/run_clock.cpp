#include "lib/training/run/run_clock.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "lib/base/process/scheduler.hpp"
#include "lib/base/types/elapsed.hpp"

namespace fsdp::detail {

RunClock::RunClock(double time_limit_seconds) : time_limit_seconds_(time_limit_seconds) {
  const auto end = scheduler_end_time();
  if (!end) return;
  if (end->time > std::chrono::system_clock::now()) {
    end_ = end->time;
    return;
  }
  warning_ = fmt::format("{}={} is over: left over from another job, and not followed", end->variable,
                         std::chrono::duration_cast<std::chrono::seconds>(end->time.time_since_epoch()).count());
}

double RunClock::seconds() const { return seconds_since(begin_); }

void RunClock::after_step(const StepReport& step, bool) {
  slowest_step_seconds_ = std::max(slowest_step_seconds_, step.seconds);
}

void RunClock::after_save(double seconds) { save_seconds_ = std::max(save_seconds_, seconds); }

void RunClock::after_validation(double seconds) { validation_seconds_ = std::max(validation_seconds_, seconds); }

void RunClock::after_verification(double seconds) { verification_seconds_ = std::max(verification_seconds_, seconds); }

void RunClock::after_sniff(double seconds) { sniff_seconds_ = std::max(sniff_seconds_, seconds); }

bool RunClock::stop_wanted(std::size_t steps_under_way) const {
  const auto steps = 1.5 + static_cast<double>(steps_under_way);
  return signalled() ||
         seconds_left() < steps * slowest_step_seconds_ + verification_seconds_ + sniff_seconds_ + seconds_to_save();
}

double RunClock::seconds_left() const {
  double left = std::numeric_limits<double>::infinity();
  if (time_limit_seconds_ > 0) left = time_limit_seconds_ - seconds();
  if (end_) left = std::min(left, std::chrono::duration<double>(*end_ - std::chrono::system_clock::now()).count());
  return left - reserved_seconds_;
}

/// With something in hand for a slower one.
double RunClock::seconds_to_save() const { return 2.0 * save_seconds_ + 5.0; }

std::string RunClock::reason(ProcessGroup& world) const {
  const auto rank = static_cast<int>(world.all_reduce(signalled() ? world.size() - world.rank() : 0.0, Reduce::max));
  if (rank == 0) return "out of time";
  const auto number = static_cast<int>(world.all_reduce(static_cast<double>(signal_.received()), Reduce::max));
  const int first = world.size() - rank;
  return fmt::format("by signal {}{}", number, first == 0 ? "" : fmt::format(" to rank {}", first));
}

}  // namespace fsdp::detail
