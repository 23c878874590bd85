#include "lib/base/status_line.hpp"

#include <unistd.h>

#include "lib/base/text_format.hpp"

namespace fsdp {

StatusLine::StatusLine(const Logger& log) : log_(log), terminal_(::isatty(STDERR_FILENO) == 1) {}

void StatusLine::show(const std::string& text) {
  if (!terminal_ || !log_.enabled(LogLevel::info)) return;
  clear();
  open_ = printable(text);
  [[maybe_unused]] const auto n = ::write(STDERR_FILENO, open_.data(), open_.size());
}

void StatusLine::keep(const std::string& text) {
  clear();
  log_.info(text);
}

void StatusLine::clear() {
  if (open_.empty()) return;
  // Back to the first column and erase to the end of the line.
  [[maybe_unused]] const auto n = ::write(STDERR_FILENO, "\r\033[K", 4);
  open_.clear();
}

}  // namespace fsdp
