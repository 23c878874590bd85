#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "lib/base/messages/log.hpp"

namespace fsdp {

/// Shows how far a long task is: a line that is rewritten on a terminal, and an occasional line in a log.
class Progress {
 public:
  /// \param log         must outlive this object
  /// \param enabled     false, as on all ranks but one: nothing is shown
  /// \param keep_every  lines in a log are so many seconds apart, or so many steps where step() is called
  Progress(const Logger& log, bool enabled, double keep_every);

  /// Shows line() when a line is due: five times a second on a terminal. May be called at any rate, from one thread.
  template <class Line>
  void show(Line line) {
    if (is_due()) put(line());
  }
  /// Shows "WHAT   25 %   DETAIL   eta 0:06" when a line is due. \param share  done of everything, 0 to 1
  void show_share(std::string_view what, double share, std::string_view detail);
  /// Shows a step's line with the time left, estimated from a moving average. In a log, the first and the last step
  /// have a line, too. \param seconds  the step took
  void step(std::int64_t step, std::int64_t total, const std::string& text, double seconds);
  /// Writes a line that stays.
  void keep(const std::string& text);
  /// Removes the line that is rewritten.
  void finish() { status_.clear(); }

  /// Seconds since the start.
  double seconds() const;
  /// The time left at the average speed since the start, as text: "1:23". \param share  done of everything, above 0
  std::string left(double share) const;

 private:
  using Clock = std::chrono::steady_clock;

  bool is_due();
  void put(const std::string& line) { status_.on_terminal() ? status_.show(line) : status_.keep(line); }

  StatusLine status_;
  bool enabled_;
  double keep_every_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_ = begin_;
  double step_seconds_ = 0;  ///< moving average
  bool is_first_step_ = true;
};

}  // namespace fsdp
