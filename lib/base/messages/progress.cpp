#include "lib/base/messages/progress.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/elapsed.hpp"

namespace fsdp {

Progress::Progress(const Logger& log, bool enabled, double keep_every)
    : status_(log), enabled_(enabled), keep_every_(keep_every) {}

bool Progress::is_due() {
  constexpr double kLive_seconds = 0.2;
  if (!enabled_ || seconds_since(last_) < (status_.on_terminal() ? kLive_seconds : keep_every_)) return false;
  last_ = Clock::now();
  return true;
}

void Progress::show_share(std::string_view what, double share, std::string_view detail) {
  if (share <= 0 || share >= 1) return;
  show([&] { return fmt::format("{}   {:.0f} %   {}   eta {}", what, 100 * share, detail, left(share)); });
}

void Progress::step(std::int64_t step, std::int64_t total, const std::string& text, double seconds) {
  step_seconds_ = step_seconds_ == 0 ? seconds : 0.9 * step_seconds_ + 0.1 * seconds;
  if (!enabled_) return;
  const auto line =
      fmt::format("{}   eta {}", text, format_duration(step_seconds_ * static_cast<double>(total - step)));
  const auto every = std::max<std::int64_t>(1, static_cast<std::int64_t>(keep_every_));
  if (is_first_step_ || step == total || step % every == 0) {
    status_.keep(line);
  } else {
    status_.show(line);
  }
  is_first_step_ = false;
}

void Progress::keep(const std::string& text) {
  if (enabled_) status_.keep(text);
}

double Progress::seconds() const { return seconds_since(begin_); }

std::string Progress::left(double share) const {
  const double so_far = seconds();
  return format_duration(so_far / share - so_far);
}

}  // namespace fsdp
