#pragma once
// Saving a run while it goes on: snapshot, a writer thread per rank, and a directory that appears whole or not at all.
//
// A save goes to checkpoints/.step-NNNNNNNN.tmp. When every rank's file is written and synced, rank 0 adds .metadata
// and run.json, renames the directory to step-NNNNNNNN and points the symlink `latest` at it. A kill at any instant
// leaves the checkpoint before.
//
// The checkpoint of the lowest validation loss has the symlink `best`, replaced in the same way: a checkpoint like the
// others, which keep_last leaves alone. One that was saved for `best` only goes when another is the best.
//
// A state with a value that is not finite is not saved. Whether a state of finite values is one to go on from shows
// only when a loss was computed from it: until then `latest` may point to it, but the newest checkpoint that is proven
// in this way is kept beside those that keep_last asks for, and `latest` goes back to it when the loss is not finite.
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/log.hpp"
#include "lib/engine/optim/optimizer.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/training/checkpoints/retention.hpp"
#include "lib/training/record/run_manifest.hpp"

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
  CheckpointSaver(ModelRuntime& runtime, Optimizer& optimizer, std::filesystem::path directory, int keep_last);
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;
  ~CheckpointSaver();

  /// Copies this rank's shards and starts writing them. Collective; no save may be under way.
  /// \param lr  of the last step, for the optimizer's param_groups
  void start(const RunManifest& manifest, double lr);
  bool under_way() const { return job_ != nullptr; }
  /// True when this rank's writer has nothing left to do.
  bool written() const;
  /// Waits for the writers of all ranks and makes the checkpoint appear. Collective.
  SaveResult finish();

  /// Has the checkpoint of state.step, if there is one or it is under way, say what the state says of its run's
  /// validations and nothing else that is new, and `best` point to it where it is that. It is a regular one from then
  /// on. On rank 0. \return what could not be done beside it, once; "": nothing
  /// \throws what read_run_manifest() and write_run_manifest() throw
  std::string amend(const RunState& state);

  /// A finite loss was computed from the parameters as they were after `step`.
  void prove(std::int64_t step);
  /// The loss of the parameters as they are is not finite: `latest` goes back to the newest proven checkpoint, if there
  /// is one. \return where it points now, on rank 0; "" when it was left alone
  std::string doubt();

 private:
  struct Job;
  void publish(Job& job, const std::vector<std::string>& parts, SaveResult& result);
  void point_links(const RunManifest& manifest, SaveResult& result);
  std::string point_latest_to(std::int64_t step);
  const KnownCheckpoint& known(std::int64_t step);
  void prune();

  ModelRuntime& runtime_;
  Optimizer& optimizer_;
  std::filesystem::path directory_;
  int keep_last_;
  std::int64_t proven_step_ = -1;                  ///< states up to this one are proven
  std::int64_t newest_step_ = -1;                  ///< of the checkpoints that this object has published
  std::int64_t latest_step_ = -1;                  ///< of those, where `latest` points
  bool told_of_link_ = false;                      ///< that `latest` could not be made
  bool told_of_waiting_ = false;                   ///< that training waits for the writer
  bool prune_again_ = false;                       ///< an unproven checkpoint kept an older one alive
  bool has_best_ = false;                          ///< there may be checkpoints that were saved for `best`
  std::map<std::int64_t, KnownCheckpoint> known_;  ///< by step, what has been read of checkpoints
  std::unique_ptr<Job> job_;
};

/// "step-00000147"
std::string checkpoint_name(std::int64_t step);

/// Steps of the directories step-NNNNNNNN, ascending. Directories of other names are ignored.
std::vector<std::int64_t> checkpoint_steps(const std::filesystem::path& directory);

}  // namespace fsdp
