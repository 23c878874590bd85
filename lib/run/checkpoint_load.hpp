#pragma once
// Loading checkpoints: any world size and strategy reads what any other wrote.
#include <filesystem>
#include <string>
#include <vector>

#include "lib/optim/adamw.hpp"
#include "lib/run/model_runtime.hpp"
#include "lib/run/run_manifest.hpp"

namespace fsdp {

/// Checkpoints to try, best first: the one at `text` (a directory or a link to one), and for "latest" (the word, or a
/// path that ends in it) the older ones after it.
/// \param checkpoints  OUT/RUN/checkpoints, where the word "latest" looks
/// \throws IoError when there is nothing at `text`
std::vector<std::filesystem::path> checkpoint_candidates(const std::string& text,
                                                         const std::filesystem::path& checkpoints);

/// read_run_manifest with a message for directories that are no checkpoint of this program.
RunManifest open_checkpoint(const std::filesystem::path& directory);

/// Reads this rank's rows of every parameter. The caller publishes them once all ranks have succeeded.
/// Accepts keys "model.<name>" (ours, torch's get_state_dict) and "<name>".
void load_checkpoint_parameters(ModelRuntime& runtime, const std::filesystem::path& checkpoint);

/// Reads this rank's rows of the AdamW state. \throws FormatError when there is none
void load_checkpoint_optimizer(ModelRuntime& runtime, AdamW& optimizer, const std::filesystem::path& checkpoint,
                               const RunState& state);

}  // namespace fsdp
