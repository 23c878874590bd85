#pragma once
// How far a conversion has come: bytes, rate and remaining time; a live line on a terminal, a line per interval in a
// batch log.
#include <chrono>
#include <cstdint>
#include <string>

#include "lib/base/status_line.hpp"

namespace fsdp {

/// "1.20 of 1.46 GiB (82 %)   1.10 GiB/s   eta 0:01". `seconds` have passed since the start.
std::string progress_text(std::uint64_t bytes_done, std::uint64_t bytes_total, double seconds);

class ByteProgress {
 public:
  /// \param verb     "written", "read"
  /// \param seconds  between lines where stderr is no terminal
  ByteProgress(const Logger& log, std::string verb, double seconds);

  /// May be called at any rate, from one thread.
  void update(std::uint64_t bytes_done, std::uint64_t bytes_total);
  /// Removes the live line.
  void finish() { status_.clear(); }
  double seconds() const;

 private:
  using Clock = std::chrono::steady_clock;
  StatusLine status_;
  std::string verb_;
  double interval_seconds_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_ = begin_;
};

}  // namespace fsdp
