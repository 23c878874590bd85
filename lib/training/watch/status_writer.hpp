#pragma once
// Writes what each rank does and uses to RUN/status, for fsdp-eval --watch and --why
// (lib/reports/runs/rank_status.hpp).
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "lib/base/messages/log.hpp"
#include "lib/base/process/blocked_thread.hpp"
#include "lib/base/process/tell_signal.hpp"
#include "lib/engine/collectives/device_backend.hpp"
#include "lib/flight/rank_flight.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/reports/runs/rank_status.hpp"
#include "lib/training/run/run_parts.hpp"
#include "lib/training/run/step_observer.hpp"

namespace fsdp::detail {

/// A thread of each rank looks at what the process and its GPU use, and the first rank of each node writes one file for
/// all of the node's ranks, which tell it by shared memory. So a job renames one small file per node every five
/// seconds, or less often where it has so many nodes that this would be more than twenty a second. Where the first rank
/// has ended or is stopped, the next one writes. A file that cannot be written is a warning.
///
/// After SIGQUIT the rank says why the job does not go on, if so, and training goes on.
class StatusWriter final : public StepObserver {
 public:
  /// Collective. \param backend  null: the ranks have no GPU; must outlive this object
  /// \param folder  nothing is written before it is open
  StatusWriter(ProcessGroup& world, std::filesystem::path run_directory, const DeviceBackend* backend, int device,
               const RunFolder& folder, const Logger& log);
  StatusWriter(const StatusWriter&) = delete;
  StatusWriter& operator=(const StatusWriter&) = delete;
  /// The file stays, for those who look for why a job failed.
  ~StatusWriter() override;

  void after_step(const StepReport& step, bool last) override;
  /// The job ends in order: removes the file, and the folder if it is the last one.
  void remove();

 private:
  /// Values of a rank in memory that the ranks of a node share. Zeros at first.
  struct Slot {
    std::atomic<double> is_there;
    std::array<std::atomic<double>, kRankStatusFields.size()> values;
  };
  static_assert(std::atomic<double>::is_always_lock_free);

  Slot& slot(int node_rank);
  void run(const std::stop_token& stop);
  /// Writes no file of the run, which may be what blocks the rank.
  void watch(const std::stop_token& stop);
  /// True on the rank that writes the node's file.
  bool writes();
  void write();
  void tell();
  void stop();

  std::filesystem::path run_directory_, folder_;
  FlightRecorder* recorder_;  ///< of this rank; may be null
  const DeviceBackend* backend_;
  int device_, rank_, node_rank_ = 0, node_size_ = 1;
  int first_rank_;   ///< of those in this rank's file
  bool has_others_;  ///< ranks to wait for; the host does not see a GPU wait
  const RunFolder& run_folder_;
  const Logger& log_;
  std::string gpu_uuid_, gpu_bus_id_;
  double interval_seconds_ = 0;
  std::unique_ptr<PeerMemory> memory_;  ///< null: each rank writes a file of its own
  std::unique_ptr<std::byte[]> alone_;  ///< in its place
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double looked_at_ = -1;  ///< seconds from begin_ at which the GPU's memory was looked at
  std::atomic<bool> is_open_ = false;
  std::atomic<double> step_ = RankStatus::kUnknown, step_end_ = 0;  ///< the end in seconds from begin_
  std::atomic<double> gpu_bytes_ = RankStatus::kUnknown, peak_gpu_bytes_ = RankStatus::kUnknown;
  std::optional<HostFlights> flights_;
  std::future<void> written_;  ///< the node's file, newest; not valid: none was begun
  bool has_warned_ = false;
  BlockedThread main_thread_;
  TellSignal tell_signal_;
  std::condition_variable_any watch_wake_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_, watch_;  ///< last: they use the members above
};

}  // namespace fsdp::detail
