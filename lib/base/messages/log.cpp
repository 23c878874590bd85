#include "lib/base/messages/log.hpp"

#include <unistd.h>

#include <string>

#include "lib/base/text/text_format.hpp"

namespace fsdp {

void Logger::warnings_of_all(std::span<const std::string> lines) const {
  if (rank_ != 0) return;
  for (const auto& line : lines) warning(line);
}

void Logger::write(LogLevel level, std::string_view line, const Advice& advice) const {
  if (level > level_) return;
  std::string text;
  if (rank_ != 0) text = "[rank " + std::to_string(rank_) + "] ";
  if (level == LogLevel::warning) text += "warning: ";
  if (level == LogLevel::error) text += "error: ";
  // The line may contain untrusted text from files and servers, which a terminal must not interpret.
  text.append(printable(line));
  if (words_ != nullptr) text.append(printable(words_(advice)));
  text.push_back('\n');
  // A closed stderr cannot be reported anywhere.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

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
