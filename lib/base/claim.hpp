#pragma once
// Who may write in a folder that others may write in too: claims that need no flock, survive a kill of their owner and
// can be taken over.
//
// A folder holds files claim.1, claim.2, ...; the owner of the highest is the owner. A successor makes the next number
// with create_exclusively(), so exactly one wins, and nothing of a live owner is ever removed or renamed (what lies
// sixteen claims back is removed). The owner touches its file as a heartbeat; it sees that it lost when the next number
// is there.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace fsdp {

/// Held by this process. Thread-safe.
class Claim {
 public:
  Claim(std::filesystem::path directory, std::uint64_t generation);
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  /// Releases, unless ended or lost.
  ~Claim();

  const std::filesystem::path& directory() const { return directory_; }
  std::uint64_t generation() const { return generation_; }
  /// Heartbeat: says that the owner lives and looks whether it still is the owner.
  void beat();
  bool lost() const { return lost_; }
  /// The work is complete: removes the folder with everything in it.
  void end();

 private:
  std::filesystem::path directory_;
  std::uint64_t generation_;
  std::atomic<bool> lost_{false};
  std::atomic<bool> ended_{false};
};

/// What is known of the owner of claim `generation` of `directory`.
enum class OwnerState {
  gone,   ///< it released the claim, or this process can see that it ended: it will never write again
  silent  ///< it may live
};
OwnerState owner_state(const std::filesystem::path& directory, std::uint64_t generation);

/// Who made claim `generation`, for messages: "process 1234 on node7 (Slurm job 42), since 2026-11-22 10:15:00 UTC".
std::string owner_words(const std::filesystem::path& directory, std::uint64_t generation);

/// Looks at a folder that others may have claimed, until it can be had.
class ClaimWatch {
 public:
  /// \param takeover_after  an owner whose heartbeat was not seen for so long is taken for dead
  ClaimWatch(std::filesystem::path directory, std::chrono::milliseconds takeover_after);

  /// Takes the claim if nobody has it or its owner is gone or was silent for too long; never waits. Makes the folder.
  /// The time of silence is measured on this process's clock from the first call on, so clocks of hosts may differ.
  /// \return the new claim's generation. \throws IoError
  std::optional<std::uint64_t> try_take();

  /// Who held it at the last try, for messages; "" when nobody.
  const std::string& holder() const { return holder_; }
  /// True once the holder's heartbeat was seen to move.
  bool owner_lives() const { return owner_lives_; }

 private:
  bool may_be_alive(std::uint64_t generation);
  std::filesystem::path directory_;
  std::chrono::milliseconds takeover_after_;
  std::string holder_;
  bool owner_lives_ = false;
  std::uint64_t seen_generation_ = 0;
  std::filesystem::file_time_type seen_beat_{};
  std::chrono::steady_clock::time_point seen_at_{};
  std::chrono::milliseconds listen_{0};  ///< from seen_at_ on
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
