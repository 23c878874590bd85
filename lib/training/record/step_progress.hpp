#pragma once
// Steps as a line that rewrites itself on a terminal, as a line per interval in a batch log.
#include <cstdint>
#include <string>

#include "lib/base/log.hpp"

namespace fsdp {

class ProgressLine {
 public:
  /// \param log_every  steps between lines when stderr is no terminal; the first and the last step always get one
  ProgressLine(const Logger& log, bool enabled, std::int64_t log_every);

  /// \param seconds  the step took; the remaining time is estimated from a moving average
  void step(std::int64_t step, std::int64_t total, const std::string& text, double seconds);
  /// A line of its own (evaluation, checkpoint), kept.
  void line(const std::string& text);
  /// Ends the rewriting line.
  void finish();

 private:
  StatusLine status_;
  bool enabled_;
  std::int64_t log_every_;
  double average_seconds_ = 0;
  bool first_ = true;
};

}  // namespace fsdp
