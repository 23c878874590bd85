#pragma once
// How a training job begins, before all of its options are known: a checkpoint that it goes on from has some of them.
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "lib/base/files/claim.hpp"
#include "lib/base/messages/log.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/training/run/restart.hpp"
#include "lib/training/run/run_clock.hpp"
#include "lib/training/step/train_options.hpp"

namespace fsdp {

// A run's folder has one owner: the job that may save, cut and move things in it.

/// Held by all ranks of a job; rank 0 has the claim (lib/base/files/claim.hpp) on OUT/RUN/.owner, without file locks.
/// It is given back at the end, and can be taken over from an owner that was killed.
class RunOwner {
 public:
  struct Options {
    std::filesystem::path run;                    ///< OUT/RUN; made when absent
    std::chrono::milliseconds takeover_after{0};  ///< silence after which an owner on another host is taken for dead
    std::function<bool()> stop;                   ///< asked while waiting for that silence
  };

  /// Collective. \throws Error (bad_input) that names the owner where one lives, as its heartbeat shows; IoError;
  ///         Error (stopped_early) when stop() said so
  static std::unique_ptr<RunOwner> take(ProcessGroup& world, const Options& options, const Logger& log);
  ~RunOwner();
  RunOwner(const RunOwner&) = delete;
  RunOwner& operator=(const RunOwner&) = delete;

  /// On rank 0, before anything in the folder is changed. Looks at the file system once a second at the most, unless
  /// `now`. \throws Error (bad_input) when another job has taken over because this one was silent (suspended, say)
  void check(bool now);

 private:
  RunOwner() = default;
  void claim(const Options& options, const Logger& log);

  std::filesystem::path run_;
  bool made_run_ = false;
  std::shared_ptr<Claim> claim_;
  std::unique_ptr<Heartbeat> heartbeat_;
  std::chrono::steady_clock::time_point looked_at_{};
};

struct RunStart {
  /// Makes the run's folder this job's, then finds the checkpoint: a job that is about to end may still save one.
  /// Collective. \throws Error subclasses
  RunStart(ProcessGroup& world, const TrainOptions& options, const Logger& log);

  detail::RunClock clock;
  std::unique_ptr<RunOwner> owner;      ///< null where nothing is trained
  std::optional<RestartPoint> restart;  ///< nothing: from the start
};

}  // namespace fsdp
