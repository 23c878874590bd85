#pragma once
// How far a long evaluation is: a line that rewrites itself on a terminal, one every half minute in a batch log.
#include <chrono>
#include <cstdint>
#include <string>

#include "lib/base/log.hpp"

namespace fsdp {

class EvaluationProgress {
 public:
  /// \param what     before the figures: "loss", "chess games"
  /// \param enabled  on one rank
  EvaluationProgress(const Logger& log, bool enabled, std::string what);

  /// \param share   done of everything, 0 to 1
  /// \param detail  shown after it
  void show(double share, const std::string& detail);

 private:
  using Clock = std::chrono::steady_clock;

  StatusLine status_;
  bool enabled_;
  std::string what_;
  Clock::time_point start_, last_;
};

}  // namespace fsdp
