#include "lib/training/record/step_progress.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "lib/base/text_format.hpp"

namespace fsdp {

ProgressLine::ProgressLine(const Logger& log, bool enabled, std::int64_t log_every)
    : status_(log), enabled_(enabled), log_every_(std::max<std::int64_t>(1, log_every)) {}

void ProgressLine::step(std::int64_t step, std::int64_t total, const std::string& text, double seconds) {
  average_seconds_ = average_seconds_ == 0 ? seconds : 0.9 * average_seconds_ + 0.1 * seconds;
  if (!enabled_) return;
  const auto line =
      fmt::format("{}   eta {}", text, format_duration(average_seconds_ * static_cast<double>(total - step)));
  const bool keep = first_ || step == total || step % log_every_ == 0;
  first_ = false;
  if (keep) {
    status_.keep(line);
  } else {
    status_.show(line);
  }
}

void ProgressLine::line(const std::string& text) {
  if (enabled_) status_.keep(text);
}

void ProgressLine::finish() { status_.clear(); }

}  // namespace fsdp
