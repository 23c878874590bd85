#pragma once
// What a run goes on from: found, agreed on by all ranks, and the model that it holds.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/log.hpp"
#include "lib/checkpoint/import_checkpoint.hpp"
#include "lib/config/model_config.hpp"
#include "lib/config/run_manifest.hpp"
#include "lib/mpi/process_group.hpp"
#include "lib/runtime/train_options.hpp"

namespace fsdp {

/// Where a run comes from: a checkpoint to go on from, and its manifest.
struct RestartPoint {
  std::vector<std::filesystem::path> candidates;  ///< best first; the rest is about the first usable one
  bool ours_only = false;                         ///< "latest" leads to checkpoints of this program only
  RunManifest manifest;
  std::shared_ptr<const ExternalCheckpoint> external;  ///< a checkpoint without run.json, see open_checkpoint()
  /// The manifest's state and options are the checkpoint's.
  bool knows_run() const { return external == nullptr || external->run().has_value(); }
};

/// Drops candidates until every rank can open the first one's manifest, and reads it. Collective; rank 0 says why.
/// \throws FormatError when none is left
void take_first_usable(ProcessGroup& world, RestartPoint& point, const Logger& log);

/// True when no rank has a problem; otherwise rank 0 logs the first one as the reason for trying an older checkpoint.
bool agree_on_checkpoint(ProcessGroup& world, const std::string& problem, const std::filesystem::path& checkpoint,
                         bool older_exist, const Logger& log);

/// The same answer on every rank. Nothing when no restart was asked for.
std::optional<RestartPoint> find_restart(ProcessGroup& world, const TrainOptions& options,
                                         const std::filesystem::path& checkpoints, const Logger& log);

/// The model's configuration from a checkpoint, a directory or the options.
ModelConfig plan_model(const TrainOptions& options, const std::optional<RestartPoint>& restart);

}  // namespace fsdp
