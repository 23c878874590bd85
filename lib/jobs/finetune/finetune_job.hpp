#pragma once
// The state of a training job between its first line and its last; internal to lib/jobs/finetune.
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lib/base/elapsed.hpp"
#include "lib/base/error.hpp"
#include "lib/base/log.hpp"
#include "lib/base/stop_signal.hpp"
#include "lib/checkpoint/import_model.hpp"
#include "lib/checkpoint/restart.hpp"
#include "lib/checkpoint/save.hpp"
#include "lib/fsdp/trace.hpp"
#include "lib/jobs/finetune/run_owner.hpp"
#include "lib/memory/calibration.hpp"
#include "lib/memory/prediction.hpp"
#include "lib/runtime/model_runtime.hpp"
#include "lib/runtime/train_options.hpp"
#include "lib/tokenizer/tokenizer.hpp"
#include "lib/train/data_loader.hpp"
#include "lib/train/metrics.hpp"
#include "lib/train/nonfinite_steps.hpp"
#include "lib/train/plan.hpp"
#include "lib/train/progress.hpp"
#include "lib/train/trainer.hpp"

namespace fsdp::detail {

using Clock = std::chrono::steady_clock;

/// A run from its first line to its last.
class FinetuneJob {
 public:
  FinetuneJob(ProcessGroup& world, const TrainOptions& options, const nlohmann::json& saved_options, const Logger& log)
      : world_(world),
        options_(options),
        saved_options_(saved_options),
        log_(log),
        directory_(run_directory(options)),
        nonfinite_(options.max_nonfinite_steps) {}

  ExitCode run(nlohmann::json& report);

 private:
  void set_up();
  void check_bf16();
  void open_tokenizer_for_texts();
  void open_data(bool training);
  void load_weights();
  void plan_runtime(int ranks_on_node);
  void say_whether_weights_are_there() const;
  void describe(const DeviceChoice& device, int ranks_on_node, int threads);
  void describe_data();
  void restore();
  bool try_restore(const std::filesystem::path& checkpoint);
  /// Where a run from a checkpoint without run.json goes on, and why, for the log.
  struct Place {
    std::int64_t step = 0, samples = 0;
    std::string text;
  };
  void restore_external();
  Place external_place(const ExternalCheckpoint& external, const ExternalOptimizer& state) const;
  std::string about_optimizer(const ExternalOptimizer& state) const;
  void check_final_outputs();
  std::filesystem::path state_for_final(std::filesystem::path checkpoint, const std::filesystem::path& temporary);
  bool save_final(const std::filesystem::path& checkpoint);
  bool save_full(const std::filesystem::path& checkpoint);
  bool save_hf(const std::filesystem::path& checkpoint);
  double current_lr() const;
  bool begins_a_run() const;
  bool old_run_is_there() const;
  void set_old_run_aside() const;
  void begin_recording();
  ExitCode train(nlohmann::json& report);
  bool train_steps(std::int64_t total_steps, std::int64_t total_samples);
  void judge_step(const StepReport& step);
  void give_up(const std::string& why);
  void save_at_the_end(bool stopped);
  void finish_outputs(nlohmann::json& report, bool& stopped);
  ExitCode conclude(nlohmann::json& report, bool stopped, std::int64_t total_steps);
  bool finish_save_if_written(bool wait);
  void start_save(bool final_one);
  void validate(std::int64_t step);
  void evaluate_only(nlohmann::json& report);
  void generate_text();
  void write_trace();
  void predict_memory_use(std::int64_t tokens_per_row, int ranks_on_node, int threads);
  void describe_memory(int ranks_on_node);
  void note_step_memory(const StepReport& step);
  std::string judge_prediction(MemoryOutcome& outcome, nlohmann::json& report);
  void report_memory(nlohmann::json& report);
  bool out_of_time() const;
  std::string reason_to_stop() const;
  bool save_is_due(bool last_step);
  void log_step(const StepReport& step, std::int64_t total_steps);
  RunManifest manifest() const;

  ProcessGroup& world_;
  const TrainOptions& options_;
  const nlohmann::json& saved_options_;
  const Logger& log_;
  std::filesystem::path directory_;
  Clock::time_point begin_ = Clock::now();
  StopSignal signal_;
  std::unique_ptr<RunOwner> owner_;  ///< while training
  bool old_run_is_there_ = false;    ///< of the same name; it is moved aside after the first step

  DeviceChoice device_;
  BatchPlan batches_;
  ModelConfig config_;
  std::optional<RestartPoint> restart_;
  std::string tokenizer_name_;      ///< "gpt2", a directory, or "" where none is known
  bool tokenizer_is_sure_ = false;  ///< given, or the model's own
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::optional<TokenLoader> train_loader_;
  std::optional<TokenLoader> val_loader_;
  std::unique_ptr<ProcessGroup> fake_world_;  ///< of a dry run
  TraceRecorder trace_;
  std::unique_ptr<ModelRuntime> runtime_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<CheckpointSaver> saver_;
  std::unique_ptr<MetricsFile> metrics_;
  std::unique_ptr<ProgressLine> progress_;
  double peak_flops_ = 0;
  double slowest_step_seconds_ = 0;
  double save_seconds_ = 0;
  Clock::time_point last_save_ = Clock::now();
  bool save_waits_ = false;       ///< it was due in steps whose loss is not finite
  bool saved_this_step_ = false;  ///< the state as it is now is in a checkpoint
  std::string save_error_;
  std::string trace_error_;  ///< on rank 0
  NonFiniteSteps nonfinite_;
  double first_loss_ = std::nan("");
  double last_loss_ = std::nan("");
  double last_val_loss_ = std::nan("");
  StepReport last_step_;
  MemoryRequest memory_request_;
  std::optional<MemoryPrediction> prediction_;  ///< on rank 0
  std::int64_t longest_row_ = 0;                ///< tokens, of the steps that are counted
  std::int64_t step_peak_bytes_ = 0;
  int undisturbed_steps_ = 0;
  bool was_disturbed_ = false;  ///< by a copy for a checkpoint, or a validation
  std::filesystem::path last_checkpoint_;
};

}  // namespace fsdp::detail
