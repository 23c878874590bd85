#pragma once
// The checkpoint that a run resumes from, agreed on by all ranks, and the model in that checkpoint.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/messages/log.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/tokenizers/files/new_tokens.hpp"
#include "lib/training/record/run_manifest.hpp"
#include "lib/training/state/checkpoint.hpp"
#include "lib/training/step/train_options.hpp"

namespace fsdp {

/// Where a run comes from: a checkpoint to go on from, and its manifest.
struct RestartPoint {
  std::vector<std::filesystem::path> candidates;  ///< best first; the rest is about the first usable one
  std::vector<std::string> problems;              ///< of the candidates that were left, newest first
  bool ours_only = false;                         ///< "latest" leads to checkpoints of this program only
  std::filesystem::path model;                    ///< the directory with config.json that --model names; or empty
  std::shared_ptr<const Checkpoint> checkpoint;   ///< the first candidate, open until its weights are loaded
  bool is_ours = false;                           ///< a directory with run.json
  bool knows_run = false;                         ///< the manifest is the checkpoint's; else it is empty
  RunManifest manifest;
  Ignored ignored;  ///< of the checkpoint that was loaded
};

/// Drops candidates until every rank can open the first one's manifest, and reads it. Collective; rank 0 says why.
/// \throws FormatError when none is left
void take_first_usable(ProcessGroup& world, RestartPoint& point, const Logger& log);

/// Leaves the point's first candidate; rank 0 says why.
void leave_checkpoint(ProcessGroup& world, RestartPoint& point, const std::string& problem, const Logger& log);

/// The same answer on every rank. Nothing when no restart was asked for.
std::optional<RestartPoint> find_restart(ProcessGroup& world, const TrainOptions& options,
                                         const std::filesystem::path& checkpoints, const Logger& log);

/// Adds the tokens of --add-tokens to a tokenizer, and rows for them to a model and its adapters; --trainable-tokens
/// new gets their numbers. \param tokenizer  as open_tokenizer() takes it. \throws FormatError; RequestError
GrownTokenizer plan_new_tokens(const ModelOptions& options, const std::string& tokenizer, ModelConfig& config,
                               LoraConfig& lora);
/// \throws RequestError for --trainable-tokens new where no tokens are added
void refuse_new_tokens(const LoraConfig& lora);

/// The model's configuration from a checkpoint, a directory or the options.
ModelConfig plan_model(const TrainOptions& options, const std::optional<RestartPoint>& restart);
/// Sets what the options say about a model whose sizes are known. \throws RequestError for a --seq-len that it cannot
/// have
void finish_model(ModelConfig& config, const ModelOptions& wish);

}  // namespace fsdp
