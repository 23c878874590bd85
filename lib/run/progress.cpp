#include "lib/run/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "lib/run/throughput.hpp"

namespace fsdp {

ProgressLine::ProgressLine(const Logger& log, bool enabled, std::int64_t log_every)
    : log_(log),
      enabled_(enabled),
      terminal_(::isatty(STDERR_FILENO) == 1),
      log_every_(std::max<std::int64_t>(1, log_every)) {}

void ProgressLine::step(std::int64_t step, std::int64_t total, const std::string& text, double seconds) {
  average_seconds_ = average_seconds_ == 0 ? seconds : 0.9 * average_seconds_ + 0.1 * seconds;
  if (!enabled_) return;
  const auto line =
      fmt::format("{}   eta {}", text, format_duration(average_seconds_ * static_cast<double>(total - step)));
  const bool keep = first_ || step == total || step % log_every_ == 0;
  first_ = false;
  if (terminal_) {
    clear();
    if (keep) {
      log_.info(line);
    } else {
      open_ = line;
      [[maybe_unused]] const auto n = ::write(STDERR_FILENO, open_.data(), open_.size());
    }
  } else if (keep) {
    log_.info(line);
  }
}

void ProgressLine::line(const std::string& text) {
  if (!enabled_) return;
  clear();
  log_.info(text);
}

void ProgressLine::finish() { clear(); }

void ProgressLine::clear() {
  if (open_.empty()) return;
  // Back to the first column and erase to the end of the line.
  [[maybe_unused]] const auto n = ::write(STDERR_FILENO, "\r\033[K", 4);
  open_.clear();
}

}  // namespace fsdp
