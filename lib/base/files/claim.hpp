#pragma once
// Exclusive ownership of a folder that several processes may write to. Claims need no flock, outlive a killed owner,
// and can be taken over.
//
// A folder holds files claim.1, claim.2, ...; the process of the highest number is the owner. A successor creates the
// next number with create_exclusively(), so exactly one succeeds. Files of a live owner are never removed or renamed;
// claims that are sixteen numbers old are removed. The owner touches its file as a heartbeat, and detects that it lost
// the claim when the next number exists.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace fsdp {

/// A claim held by this process. Thread-safe.
class Claim {
 public:
  Claim(std::filesystem::path directory, std::uint64_t generation);
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  /// Releases the claim unless it was ended or lost.
  ~Claim();

  const std::filesystem::path& directory() const { return directory_; }
  std::uint64_t generation() const { return generation_; }
  /// Updates the heartbeat and checks that this process is still the owner.
  void beat();
  bool lost() const { return lost_; }
  /// Ends the claim after the work is complete: removes the folder with its content.
  void end();

 private:
  std::filesystem::path directory_;
  std::uint64_t generation_;
  std::atomic<bool> lost_{false};
  std::atomic<bool> ended_{false};
};

/// State of the owner of a claim.
enum class OwnerState {
  gone,   ///< the owner released the claim or has provably ended, so it will not write again
  silent  ///< the owner may be running
};
OwnerState owner_state(const std::filesystem::path& directory, std::uint64_t generation);

/// The owner of claim `generation`, for messages: "process 1234 on node7 (Slurm job 42), since 2026-11-22 10:15:00
/// UTC".
std::string owner_words(const std::filesystem::path& directory, std::uint64_t generation);

/// Waits, by polling, for a folder that another process may have claimed.
class ClaimWatch {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;

  /// \param takeover_after  an owner without a heartbeat for this long is considered dead
  /// \param clock           the time by which silence is measured
  ClaimWatch(std::filesystem::path directory, std::chrono::milliseconds takeover_after,
             Clock clock = std::chrono::steady_clock::now);

  /// Takes the claim if it is free, or its owner is gone or was silent for too long. Does not wait. Creates the folder.
  /// The silence is measured with this process's clock from the first call on, so clocks of hosts may differ.
  /// \return the generation of the new claim; nullopt when another process holds it. \throws IoError
  std::optional<std::uint64_t> try_take();

  /// The holder at the last try, for messages; "" when there was none.
  const std::string& holder() const { return holder_; }
  /// True once the holder's heartbeat was observed to change.
  bool owner_lives() const { return owner_lives_; }

 private:
  bool may_be_alive(std::uint64_t generation);
  std::filesystem::path directory_;
  std::chrono::milliseconds takeover_after_;
  Clock clock_;
  std::string holder_;
  bool owner_lives_ = false;
  std::uint64_t seen_generation_ = 0;
  std::filesystem::file_time_type seen_beat_{};
  std::chrono::steady_clock::time_point seen_at_{};
  std::chrono::milliseconds listen_{0};  ///< silence after seen_at_ that allows a takeover
};

/// Beats for the claims of this process from a thread of its own, as long as they live.
class Heartbeat {
 public:
  explicit Heartbeat(std::chrono::milliseconds interval);
  void add(const std::shared_ptr<Claim>& claim);

 private:
  void run(const std::stop_token& stop);
  std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::vector<std::weak_ptr<Claim>> claims_;
  std::jthread thread_;  ///< last: it uses the members above
};

}  // namespace fsdp
