#pragma once
// What a training run will do, worked out and checked before anything is allocated.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "lib/base/log.hpp"
#include "lib/config/model_config.hpp"
#include "lib/config/run_manifest.hpp"
#include "lib/mpi/process_group.hpp"
#include "lib/optim/adamw.hpp"
#include "lib/optim/lr_schedule.hpp"
#include "lib/run/foreign_checkpoint.hpp"
#include "lib/run/train_options.hpp"

namespace fsdp {

/// How sequences are split over steps, micro-batches and ranks.
struct BatchPlan {
  std::int64_t rows_per_micro_batch = 0;  ///< on one rank
  std::int64_t rows_per_step = 0;         ///< over all ranks and micro-batches
  int accumulation_steps = 1;
};

/// \throws UsageError naming the numbers that do not fit together and the nearest that do
BatchPlan plan_batches(const TrainOptions& options, int world_size);

/// Where a run comes from: a checkpoint to go on from, and its manifest.
struct RestartPoint {
  std::vector<std::filesystem::path> candidates;  ///< best first; the rest is about the first usable one
  bool ours_only = false;                         ///< "latest" leads to checkpoints of this program only
  RunManifest manifest;
  std::shared_ptr<const ForeignCheckpoint> foreign;  ///< a checkpoint without run.json, see open_checkpoint()
  /// The manifest's state and options are the checkpoint's.
  bool knows_run() const { return foreign == nullptr || foreign->run().has_value(); }
};

/// Drops candidates until every rank can open the first one's manifest, and reads it. Collective; rank 0 says why.
/// \throws FormatError when none is left
void take_first_usable(ProcessGroup& world, RestartPoint& point, const Logger& log);

/// True when no rank has a problem; otherwise rank 0 logs the first one as the reason for trying an older checkpoint.
bool agree_on_checkpoint(ProcessGroup& world, const std::string& problem, const std::filesystem::path& checkpoint,
                         bool older_exist, const Logger& log);

/// Where some ranks found something wrong with a file, all of them throw the first one's FormatError: one message.
/// Collective. \param problem  empty: none here
void fail_together(ProcessGroup& world, const std::string& problem);

/// The same answer on every rank. Nothing when no restart was asked for.
std::optional<RestartPoint> find_restart(ProcessGroup& world, const TrainOptions& options,
                                         const std::filesystem::path& checkpoints, const Logger& log);

/// The model's configuration from a checkpoint, a directory or the options.
ModelConfig plan_model(const TrainOptions& options, const std::optional<RestartPoint>& restart);

/// Optimizer steps of the whole run (those before a restart included).
std::int64_t plan_steps(const TrainOptions& options, std::int64_t num_rows, std::int64_t rows_per_step);

/// \throws UsageError naming the option
AdamWOptions plan_optimizer(const TrainOptions& options);

LrSchedule plan_schedule(const TrainOptions& options, std::int64_t total_steps);

/// OUT/RUN, which may be deeper (a/b) but is below OUT. \throws UsageError
std::filesystem::path run_directory(const TrainOptions& options);

}  // namespace fsdp
