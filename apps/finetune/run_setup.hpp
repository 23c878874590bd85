#pragma once
// What a fine-tuning job was asked for and what it found, before anything is computed. Nothing of it changes
// afterwards, but that the open checkpoint is let go once its weights are loaded.
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/log.hpp"
#include "lib/chess/evaluation/games.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/text/tokenizer/tokenizer.hpp"
#include "lib/training/checkpoints/restart.hpp"
#include "lib/training/data/data_loader.hpp"
#include "lib/training/evaluate/generate_text.hpp"
#include "lib/training/record/step_progress.hpp"
#include "lib/training/run/run_start.hpp"
#include "lib/training/step/plan.hpp"
#include "lib/training/step/train_options.hpp"
#include "lib/training/step/trainer.hpp"

namespace fsdp::detail {

struct TokenizerChoice {
  std::string name;                            ///< "gpt2", a directory, or "" where none is known
  bool is_sure = false;                        ///< given, or the model's own
  std::shared_ptr<const Tokenizer> tokenizer;  ///< null where none is known
};

struct ValidationData {
  std::string name;  ///< "" where there is only one and it was given none
  TokenLoader rows;
};

/// What --keep-best and --patience go by.
struct DecidingMetric {
  std::string metric = "loss";  ///< or one of the games': a share, the higher the better
  std::size_t set = 0;          ///< index of the validation set whose loss decides
  bool is_loss() const { return metric == "loss"; }
};

struct ValidationGameSet {
  LoadedGames loaded;
  std::string identity;  ///< of the games and of what is asked of them
};

struct RunSetup {
  RunSetup(const TrainOptions& asked, const nlohmann::json& saved, const std::optional<RestartPoint>& found)
      : options(asked), saved_options(saved), restart(found), directory(run_directory(asked)) {}

  const TrainOptions& options;
  const nlohmann::json& saved_options;  ///< options as text by long name
  const std::optional<RestartPoint>& restart;
  std::filesystem::path directory;  ///< the run's: OUT/RUN
  DeviceChoice device;
  int ranks_on_node = 1;
  int threads = 1;  ///< of this rank
  ModelConfig config;
  BatchPlan batches;
  TokenizerChoice tokenizer;
  std::optional<TokenLoader> train_data;  ///< where there is training
  std::string export_dtype;               ///< of --save-final-hf, which has that of the weights the run began with; ""
                                          ///< where they do not say: as checkpoints have it
  std::string chat_template;              ///< name of the one that its conversations were written by; "" without any
  std::vector<ValidationData> validation;
  std::optional<ValidationGameSet> games;  ///< that are played at validations
  std::vector<Prompt> sample_prompts;      ///< that are continued at validations
  DecidingMetric deciding;
  std::int64_t total_steps = 0;    ///< of the whole run, those before a restart included
  std::int64_t total_samples = 0;  ///< likewise; the largest number where steps decide
  LrSchedule schedule;

  /// As asked for, but that none are captured by themselves where texts of many lengths would each need one, whose
  /// memory nothing predicts.
  CudaGraphs cuda_graphs() const;
  /// True when a validation has something to compute.
  bool validates() const { return !validation.empty() || games || !options.validation.sample_prompts.empty(); }
  std::filesystem::path checkpoints() const { return directory / "checkpoints"; }
};

/// Not the continuation of what lies in the run's folder: from nothing, or from weights that are not its own.
/// \param taken  where it goes on from
bool begins_a_run(const RunSetup& setup, const std::optional<RestartPoint>& taken);

inline bool exports_at_the_end(const TrainOptions& options) {
  return !options.save_final_full.empty() || !options.save_final_hf.empty();
}

/// Collective. \param start  must outlive the result. \throws Error subclasses
RunSetup set_up_run(ProcessGroup& world, const RunStart& start, const TrainOptions& options,
                    const nlohmann::json& saved_options, const Logger& log);

/// What a checkpoint says of the run. \param state  where it stands
RunManifest manifest_of(const RunSetup& setup, const RunState& state, int world_size);

struct RunContext {
  ProcessGroup& world;
  const Logger& log;
  const RunSetup& setup;
  ModelRuntime& runtime;
  Trainer& trainer;
  ProgressLine& progress;
  std::string products;  ///< what multiplies matrices, on rank 0: Ops::product_way()

  RunManifest manifest() const {
    auto manifest = manifest_of(setup, trainer.state(), world.size());
    manifest.products = products;
    if (const auto& quantize = runtime.decoder().options.quantize; quantize.enabled())
      manifest.data["quantize"] = quantization_to_json(quantize);
    if (runtime.has_adapters()) {
      manifest.data["weights"] = runtime.base().directory;
      manifest.data["weights_hash"] = runtime.base().hash;
      manifest.data["adapter"] =
          adapter_config_to_json(setup.config, runtime.decoder().options.lora, runtime.base().directory);
    }
    return manifest;
  }
  /// One of --eval-every's validations belongs to the state as it is now.
  bool validates_here() const {
    const auto& options = setup.options;
    return options.eval_every > 0 && trainer.state().step % options.eval_every == 0 && setup.validates();
  }
  double current_lr() const { return setup.schedule.at(std::max<std::int64_t>(1, trainer.state().step)); }
};

}  // namespace fsdp::detail
