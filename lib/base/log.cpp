#include "lib/base/log.hpp"

#include <unistd.h>

#include <string>

#include "lib/base/text_format.hpp"

namespace fsdp {

void Logger::write(LogLevel level, std::string_view line) const {
  if (level > level_) return;
  std::string text;
  if (rank_ != 0) text = "[rank " + std::to_string(rank_) + "] ";
  if (level == LogLevel::warning) text += "warning: ";
  if (level == LogLevel::error) text += "error: ";
  // What files and servers are called or say is in here, too: a terminal must show it, not obey it.
  text.append(printable(line));
  text.push_back('\n');
  // Nothing can be done about a closed stderr.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace fsdp
