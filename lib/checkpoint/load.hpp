#pragma once
// Loading checkpoints: any world size and strategy reads what any other wrote.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lib/checkpoint/import_checkpoint.hpp"
#include "lib/config/run_manifest.hpp"
#include "lib/optim/adamw.hpp"
#include "lib/runtime/model_runtime.hpp"

namespace fsdp {

/// True when `text` is the word "latest", a path that ends in it, or the folder of a run or of its checkpoints, which
/// stands for the latest of them.
bool names_latest(const std::string& text);

/// Checkpoints to try, best first: the one at `text` (a directory, a file or a link to one), and for "latest" (the
/// word, a path that ends in it, or a run's folder) the older ones after it. \param checkpoints  OUT/RUN/checkpoints,
/// where the word "latest" looks \throws IoError when there is nothing at `text`
std::vector<std::filesystem::path> checkpoint_candidates(const std::string& text,
                                                         const std::filesystem::path& checkpoints);

/// A checkpoint of any program whose headers are sound.
struct OpenedCheckpoint {
  RunManifest manifest;                                ///< of a external checkpoint without external->run(): empty
  std::shared_ptr<const ExternalCheckpoint> external;  ///< null: a directory of ours, with run.json
  bool knows_run() const { return external == nullptr || external->run().has_value(); }
};

/// \param ours_only  it must be a directory of ours: whatever "latest" leads to
/// \throws FormatError saying what it is not; MissingInput
OpenedCheckpoint open_checkpoint(const std::filesystem::path& path, bool ours_only);

/// Reads this rank's rows of every parameter. The caller publishes them once all ranks have succeeded.
/// Accepts keys "model.<name>" (ours, torch's get_state_dict) and "<name>".
void load_checkpoint_parameters(ModelRuntime& runtime, const std::filesystem::path& checkpoint);

/// Reads this rank's rows of the AdamW state. \throws FormatError when there is none
void load_checkpoint_optimizer(ModelRuntime& runtime, AdamW& optimizer, const std::filesystem::path& checkpoint,
                               const RunState& state);

}  // namespace fsdp
