#pragma once
// A group of ranks that records its collectives, and when this rank waits for others (lib/flight).
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/flight/flight_recorder.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// The record is frozen when others do not arrive, so that it shows in what this rank waited.
class RecordedGroup final : public ProcessGroup {
 public:
  /// \param group, recorder  must outlive the result, and groups that are split from it
  RecordedGroup(ProcessGroup& group, FlightRecorder& recorder);
  RecordedGroup(std::unique_ptr<ProcessGroup> group, FlightRecorder& recorder);

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  void barrier() override;
  void all_reduce(std::span<double> values, Reduce op) override;
  void broadcast(std::span<std::byte> bytes, int root) override;
  std::vector<std::string> gather(std::string_view text, int root) override;
  std::unique_ptr<Work> all_gather(std::span<const GatherBlock> blocks) override;
  std::unique_ptr<Work> all_to_all(std::span<const ExchangeBlock> blocks) override;
  std::unique_ptr<ProcessGroup> split(int color) override;
  std::unique_ptr<ProcessGroup> split_by_node() override;
  std::unique_ptr<PeerMemory> peer_memory(std::size_t size_bytes, std::size_t num_counters) override;
  std::chrono::milliseconds timeout() const override { return group_.timeout(); }
  std::vector<int> missing_ranks() override { return group_.missing_ranks(); }
  bool liveness_probed() override { return group_.liveness_probed(); }
  std::chrono::milliseconds init_timeout() const override { return group_.init_timeout(); }
  void check_wait() const override { group_.check_wait(); }
  void end_waits(std::function<bool()> wanted) override { group_.end_waits(std::move(wanted)); }
  int world_rank(int member) const override { return group_.world_rank(member); }
  FlightRecorder* recorder() const override { return &recorder_; }
  std::uint8_t recorded_as() const override { return place_; }

 private:
  std::unique_ptr<ProcessGroup> owner_;  ///< may be null
  ProcessGroup& group_;
  FlightRecorder& recorder_;
  std::uint8_t place_;
};

/// Nanoseconds to add to this host's CLOCK_MONOTONIC for rank 0's time since 1970: the median of some barriers, after
/// which all ranks look at their clocks. Collective
std::int64_t clock_offset_to_rank0_ns(ProcessGroup& world);

}  // namespace fsdp
