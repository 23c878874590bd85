#pragma once
// Saving a run while it goes on: snapshot, a writer thread per rank, and a directory that appears whole or not at all.
//
// A save goes to checkpoints/.step-NNNNNNNN.tmp. When every rank's file is written and synced, rank 0 adds .metadata
// and run.json, and renames the directory to step-NNNNNNNN. The symlink `latest` is then pointed at it. A kill at any
// instant leaves the checkpoint before. lib/training/run/run_schedule.hpp decides about saves, links and removals.
//
// The checkpoint of the lowest validation loss has the symlink `best`, replaced in the same way: a checkpoint like the
// others, which keep_last leaves alone. One that was saved for `best` only goes when another is the best. One that was
// saved because half an hour had passed, though no option asked for saves, goes when a newer one is there.
//
// A state with a value that is not finite is not saved. Whether a state of finite values is one to go on from shows
// only when a loss was computed from it: until then `latest` may point to it, but the newest checkpoint that is proven
// in this way is kept beside those that keep_last asks for, and `latest` goes back to it when the loss is not finite.
// With keep_optimizer, checkpoints before it lose their optimizer's state: rank 0 rewrites them in the background.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lib/engine/optim/optimizer.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/training/record/run_manifest.hpp"
#include "lib/training/state/retention.hpp"

namespace fsdp {

struct SaveResult {
  bool saved = false;
  std::filesystem::path path;  ///< the checkpoint, when saved
  std::string error;           ///< on every rank, when not
  std::string warning;         ///< on rank 0: what could not be done beside it, once
  std::uint64_t size_bytes = 0;
  double seconds = 0;          ///< from start() to the rename
  double blocked_seconds = 0;  ///< that training waited
};

class CheckpointSaver {
 public:
  /// \param directory  OUT/RUN/checkpoints; made when absent. Stale temporary directories in it are removed, so it must
  ///                   be this job's alone.
  /// \param keep_optimizer  number of newest checkpoints that keep the optimizer's state; 0: all
  CheckpointSaver(ModelRuntime& runtime, Optimizer& optimizer, std::filesystem::path directory, int keep_last,
                  int keep_optimizer = 0);
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;
  ~CheckpointSaver();

  /// Copies this rank's shards and starts writing them. Collective; no save may be under way.
  /// \param lr  of the last step, for the optimizer's param_groups
  void start(const RunManifest& manifest, double lr);
  bool under_way() const { return job_ != nullptr; }
  const std::filesystem::path& directory() const { return directory_; }
  /// True when this rank's writer has nothing left to do.
  bool written() const;
  /// Waits for the writers of all ranks and makes the checkpoint appear. Collective.
  /// \param appeared  called on rank 0 as soon as the checkpoint has its name, to make its links; must not throw
  SaveResult finish(const std::function<void()>& appeared);

  /// True while the checkpoint of this step is being written.
  bool is_pending(std::int64_t step) const;
  /// Writes what the state says of its run's validations into the checkpoint of state.step, if there is one or it is
  /// being written. The checkpoint is a regular one from then on. On every rank; rank 0 writes.
  /// \return false on rank 0 if there is no such checkpoint
  /// \throws what read_run_manifest() and write_run_manifest() throw, on rank 0
  bool amend(const RunState& state);
  /// Calls keep_as_regular() on rank 0.
  void keep_for_good(std::int64_t step);
  /// Removes the checkpoints that superseded_checkpoints() names, on rank 0. \param proven_step  a finite loss was
  /// computed from the parameters as they were after this step
  /// \return Superseded::until_proven
  bool prune(std::int64_t proven_step);
  /// On rank 0: ends a rewrite that is done, and begins the next one that checkpoints_to_strip() names.
  /// \param wait  until none is left to do
  /// \return what could not be rewritten, for a warning; each once
  std::vector<std::string> strip(std::int64_t proven_step, bool wait);

 private:
  struct Job;
  struct Rewrite;
  bool begin_rewrite(std::int64_t proven_step);
  void end_rewrite(std::vector<std::string>& problems);
  void publish(Job& job, const std::vector<std::string>& parts, SaveResult& result,
               const std::function<void()>& appeared);
  const KnownCheckpoint& known(std::int64_t step);

  ModelRuntime& runtime_;
  Optimizer& optimizer_;
  std::filesystem::path directory_;
  int keep_last_, keep_optimizer_;
  std::int64_t newest_step_ = -1;                  ///< of the checkpoints that this object has published
  bool told_of_waiting_ = false;                   ///< that training waits for the writer
  std::map<std::int64_t, KnownCheckpoint> known_;  ///< by step, what has been read of checkpoints
  std::unique_ptr<Job> job_;
  std::unique_ptr<Rewrite> rewrite_;
  std::set<std::int64_t> not_rewritten_;  ///< steps of checkpoints that could not be
};

}  // namespace fsdp
