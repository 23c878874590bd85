#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace fsdp {

/// Speed over the last seconds and the time that is left.
class TransferProgress {
 public:
  using Clock = std::chrono::steady_clock;

  explicit TransferProgress(std::uint64_t total_bytes) : total_bytes_(total_bytes) {}
  /// \param received_bytes  from the network so far
  void sample(Clock::time_point now, std::uint64_t received_bytes);
  /// Bytes per second; 0 before there are two samples.
  double rate() const;
  /// "1.20 of 13.48 GiB, 9 %, 112 MiB/s, 1:50 left"
  std::string line(std::uint64_t present_bytes) const;

 private:
  struct Sample {
    Clock::time_point time;
    std::uint64_t bytes;
  };
  std::uint64_t total_bytes_;
  std::deque<Sample> samples_;
};

}  // namespace fsdp
