#pragma once
// The options of a fine-tuning job and what was found for them (data, tokenizer, device, checkpoint) before anything is
// computed. Constant afterwards, except that the open checkpoint is closed once its weights are loaded.
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/finetune/start/new_tokenizer.hpp"
#include "lib/base/messages/log.hpp"
#include "lib/base/messages/progress.hpp"
#include "lib/bf16/nccl_log.hpp"
#include "lib/chess/evaluation/games.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"
#include "lib/training/data/mixture_state.hpp"
#include "lib/training/data/training_data.hpp"
#include "lib/training/evaluate/prompt.hpp"
#include "lib/training/requests/asked_tasks.hpp"
#include "lib/training/run/restart.hpp"
#include "lib/training/run/run_start.hpp"
#include "lib/training/step/plan.hpp"
#include "lib/training/step/train_options.hpp"
#include "lib/training/step/trainer.hpp"

namespace fsdp::detail {

struct TokenizerChoice {
  std::string name;                            ///< "gpt2", a directory, or "" when unknown
  bool is_sure = false;                        ///< given by the user, or found with the model
  std::shared_ptr<const Tokenizer> tokenizer;  ///< null when unknown
};

struct ValidationData {
  std::string name;  ///< "" when there is only one set and it was given without a name
  TokenLoader rows;
};

/// The metric that --keep-best and --patience use.
struct DecidingMetric {
  std::string metric = "loss";  ///< "loss", a sum of the objective, a chess metric, or TASK.METRIC
  std::size_t set = 0;          ///< index of the validation set whose loss or sum decides
  bool higher_is_better = false;
  /// The loss of a set, or a sum of the objective over it.
  bool is_of_set() const { return !metric.starts_with("chess_") && metric.find('.') == std::string::npos; }
};

struct ValidationGameSet {
  LoadedGames loaded;
  std::string identity;  ///< hash of the games and of the options for them
};

struct ValidationTaskSet {
  AskedTasks questions;
  std::vector<std::int32_t> ends;  ///< ids that end an answer
};

struct RunSetup {
  RunSetup(const TrainOptions& asked, const nlohmann::json& saved, const std::optional<RestartPoint>& found)
      : options(asked), saved_options(saved), restart(found), directory(run_directory(asked)) {}

  const TrainOptions& options;
  const nlohmann::json& saved_options;  ///< options as text by long name
  const std::optional<RestartPoint>& restart;
  std::filesystem::path directory;  ///< the run's folder, OUT/RUN
  DeviceChoice device;
  int ranks_on_node = 1;
  int threads = 1;  ///< CPU threads of this rank
  ModelConfig config;
  LoraConfig lora;  ///< the options', with the vocabulary and the numbers of new tokens
  BatchPlan batches;
  TokenizerChoice tokenizer;
  bool has_new_tokens = false;                  ///< of --add-tokens: the tokenizer lies in the run's folder
  std::unique_ptr<NewTokenizer> new_tokenizer;  ///< of this job's --add-tokens: there when the run begins; else null
  std::optional<TrainingData> train_data;       ///< set when the job trains
  std::vector<std::string> contents;            ///< content_of() of its sources
  ContinuedMixture continued;                   ///< what a restart found about them
  std::string reference;                        ///< hash of the weights that preferences are compared with; "": none
  std::string export_dtype;                     ///< dtype name of --save-final-hf, see export_dtype(); "": unknown
  std::string chat_template;                    ///< name of the training data's chat template; "": none
  std::string template_text;                    ///< that template, for exports; "": none, or the tokenizer's own
  std::vector<ValidationData> validation;
  std::optional<ValidationGameSet> games;  ///< games to play at validations
  std::optional<ValidationTaskSet> tasks;  ///< benchmarks to ask at validations
  std::vector<Prompt> sample_prompts;      ///< prompts to continue at validations
  DecidingMetric deciding;
  std::int64_t total_steps = 0;    ///< of the whole run, including steps before a restart
  double save_every = 0;           ///< steps between saves, see falls_on()
  double eval_every = 0;           ///< steps between validations
  double tasks_every = 0;          ///< steps between benchmarks; 0: at each validation
  std::int64_t total_samples = 0;  ///< of the whole run; the largest int64 when --max-steps decides
  LrSchedule schedule;

  /// The --cuda-graphs setting. The automatic setting becomes off when texts of many lengths would each need a graph of
  /// their own, because the memory of these graphs cannot be predicted.
  CudaGraphs cuda_graphs() const;
  /// True when a validation has something to compute.
  bool validates() const { return !validation.empty() || games || tasks || !options.validation.sample_prompts.empty(); }
  std::filesystem::path checkpoints() const { return directory / "checkpoints"; }
};

/// True when the job begins a new run: it loaded no checkpoint, or one at step 0 outside the run's folder.
/// \param taken  the checkpoint that was loaded
bool begins_a_run(const RunSetup& setup, const std::optional<RestartPoint>& taken);

/// The steps of the job for the engine.
StepShape shape_of_steps(const RunSetup& setup);

inline bool exports_at_the_end(const TrainOptions& options) {
  return !options.save_final_full.empty() || !options.save_final_hf.empty();
}

/// Checks options and opens data, tokenizer and device. Collective.
/// \param start  must outlive the result
/// \throws Error subclasses
RunSetup set_up_run(ProcessGroup& world, const RunStart& start, const TrainOptions& options,
                    const nlohmann::json& saved_options, const Logger& log);

/// Puts the training data where an older checkpoint stands that was loaded in place of setup.restart's. Collective.
/// \param taken  the checkpoint that was loaded
void go_back_in_sources(ProcessGroup& world, RunSetup& setup, const std::optional<RestartPoint>& taken,
                        const Logger& log);

/// Returns a checkpoint's description of the run. \param state  present state of the run
RunManifest manifest_of(const RunSetup& setup, const RunState& state, int world_size);

struct RunContext {
  ProcessGroup& world;
  const Logger& log;
  const RunSetup& setup;
  ModelRuntime& runtime;
  Trainer& trainer;
  Progress& progress;
  std::string products;         ///< the matrix product implementation, Ops::gemm_description(), on rank 0
  NcclLog* nccl_log = nullptr;  ///< tells NCCL's transport; null: nothing does

  RunManifest manifest() const {
    auto manifest = manifest_of(setup, trainer.state(), world.size());
    manifest.products = products;
    if (const auto& quantize = runtime.decoder().options.quantize; quantize.enabled())
      manifest.data["quantize"] = quantization_to_json(quantize);
    if (runtime.has_adapters()) {
      manifest.data["weights"] = runtime.base().directory;
      manifest.data["weights_hash"] = runtime.base().hash;
      const auto& lora = runtime.decoder().options.lora;
      manifest.data["adapter"] = adapter_config_to_json(setup.config, lora, runtime.base().directory);
      if (lora.vocabulary > 0) manifest.data["adapter_vocabulary"] = lora.vocabulary;
      if (!lora.tables.empty()) manifest.data["adapter_tables"] = lora.tables;
    }
    return manifest;
  }
  /// True when an --eval-every validation is due for the current state.
  bool validates_here() const {
    const auto step = trainer.state().step;
    return setup.validates() && (falls_on(step, setup.eval_every) || falls_on(step, setup.tasks_every));
  }
  double current_lr() const { return setup.schedule.at(std::max<std::int64_t>(1, trainer.state().step)); }
};

}  // namespace fsdp::detail
