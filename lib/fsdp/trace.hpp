#pragma once
// Counts of what the engine sent, and an optional record of when it did what.
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

/// Collectives along one mesh axis, counted by the engine as it issues them; payload bytes this rank receives.
struct AxisCounts {
  std::int64_t all_gathers = 0;
  std::int64_t reduce_scatters = 0;
  std::int64_t all_reduces = 0;
  std::int64_t bytes = 0;
};

struct CommCounts {
  AxisCounts shard;
  AxisCounts replicate;
};

/// Events in Chrome's trace format (opens in Perfetto). Off unless enabled; then one record per scope.
class TraceRecorder {
 public:
  using Clock = std::chrono::steady_clock;

  void enable() { enabled_ = true; }
  bool enabled() const { return enabled_; }
  void add(std::string name, std::string_view category, Clock::time_point begin, Clock::time_point end);
  /// The recorded events as JSON objects separated by commas; `rank` becomes the process id.
  std::string events_json(int rank) const;

  /// Records from construction to destruction.
  class Scope {
   public:
    Scope(TraceRecorder& recorder, std::string_view name, std::string_view category)
        : recorder_(recorder),
          name_(recorder.enabled() ? name : std::string_view()),
          category_(category),
          begin_(Clock::now()) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() {
      if (recorder_.enabled()) recorder_.add(std::move(name_), category_, begin_, Clock::now());
    }

   private:
    TraceRecorder& recorder_;
    std::string name_;
    std::string_view category_;
    Clock::time_point begin_;
  };

 private:
  struct Record {
    std::string name;
    std::string_view category;
    Clock::time_point begin;
    Clock::time_point end;
  };
  bool enabled_ = false;
  Clock::time_point origin_ = Clock::now();
  std::vector<Record> records_;
};

}  // namespace fsdp
