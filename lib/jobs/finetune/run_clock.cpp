#include "lib/jobs/finetune/run_clock.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "lib/base/elapsed.hpp"

namespace fsdp::detail {

double RunClock::seconds() const { return seconds_since(begin_); }

void RunClock::after_step(const StepReport& step, bool) {
  slowest_step_seconds_ = std::max(slowest_step_seconds_, step.seconds);
}

void RunClock::after_save(double seconds) { save_seconds_ = std::max(save_seconds_, seconds); }

bool RunClock::out_of_time() const {
  // One more step and the last save must fit, with something in hand for slower ones.
  const double needed = 1.5 * slowest_step_seconds_ + 2.0 * save_seconds_ + 5.0;
  if (time_limit_seconds_ > 0 && seconds() + needed > time_limit_seconds_) return true;
  if (const auto end = scheduler_end_time()) {
    const auto left = std::chrono::duration<double>(*end - std::chrono::system_clock::now()).count();
    if (left < needed) return true;
  }
  return false;
}

std::string RunClock::reason(ProcessGroup& world) const {
  const auto rank = static_cast<int>(world.all_reduce(signalled() ? world.size() - world.rank() : 0.0, Reduce::max));
  if (rank == 0) return "out of time";
  const auto number = static_cast<int>(world.all_reduce(static_cast<double>(signal_.received()), Reduce::max));
  const int first = world.size() - rank;
  return fmt::format("by signal {}{}", number, first == 0 ? "" : fmt::format(" to rank {}", first));
}

}  // namespace fsdp::detail
