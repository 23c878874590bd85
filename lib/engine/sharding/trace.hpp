#pragma once
// Timeline of the engine's actions.
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "lib/compute/device/observer.hpp"

namespace fsdp {

/// Records events in Chrome's trace format, which Perfetto opens. Events of category "schedule" are left out.
class TraceRecorder final : public EngineObserver {
 public:
  void begin(std::string_view what, std::string_view category) override;
  void end() override;
  /// The recorded events as JSON objects separated by commas; `rank` becomes the process id.
  std::string events_json(int rank) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Record {
    std::string name;
    std::string category;
    Clock::time_point begin;
    Clock::time_point end;
  };
  Clock::time_point origin_ = Clock::now();
  std::vector<Record> open_;  ///< events that have not ended, outermost first
  std::vector<Record> records_;
};

}  // namespace fsdp
