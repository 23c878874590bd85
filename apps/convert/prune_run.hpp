#pragma once
// Makes a run smaller: its older checkpoints keep their weights alone (--prune).
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>

#include "lib/base/messages/log.hpp"

namespace fsdp {

struct PruneOptions {
  int keep_optimizer = 1;  ///< number of newest checkpoints that keep the optimizer's state, as that of `latest` does
  bool dry_run = false;    ///< says what would be done
  std::function<bool()> stop;
};

/// Takes the run's folder for the time of the work, as a job of fsdp-finetune does, so that no run writes there.
/// \param path  the folder of a run of fsdp-finetune, or of its checkpoints
/// \return {"checkpoints": [{"path", "freed_bytes"}], "freed_bytes", "failed": [messages]}; the failed ones are whole
/// \throws MissingInput when there is no checkpoint; Error (bad_input) when a job has the run; Stopped; IoError
nlohmann::json prune_run(const std::filesystem::path& path, const PruneOptions& options, const Logger& log);

}  // namespace fsdp
