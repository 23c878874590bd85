#pragma once
// What a job writes into its run's folder: checkpoints, metrics.jsonl, and what becomes of an older run of its name.
// RUN/job.json states how the run's newest job was started and how it ended.
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "apps/finetune/memory_reporter.hpp"
#include "apps/finetune/run_setup.hpp"
#include "lib/training/checkpoints/best.hpp"
#include "lib/training/checkpoints/save.hpp"
#include "lib/training/record/event_file.hpp"
#include "lib/training/record/metrics.hpp"
#include "lib/training/run/run_start.hpp"

namespace fsdp::detail {

/// Writes RUN/job.json on rank 0. Training continues when the file cannot be written.
class JobFile {
 public:
  /// \param first_step  of this job
  /// \param predicted_bytes  predicted peak memory of a rank; 0: not known
  JobFile(const RunContext& context, std::int64_t first_step, std::int64_t predicted_bytes);

  void add_save(const SaveResult& save, std::int64_t step);
  /// \param outcome    "done" or "stopped"
  /// \param why_early  it is done before its last step: why; else empty
  void end(std::string_view outcome, const std::string& why_early);

 private:
  void write();

  const RunContext& context_;
  nlohmann::json content_;
  bool warned_ = false;
};

/// A new run writes nothing before it has made a step, so that one that fails at once leaves an older run where it is.
class RunRecord {
 public:
  /// \param resume_step  metrics of later steps are cut off; negative: the run begins
  RunRecord(const RunContext& context, RunStart& start, MemoryReporter& memory, std::int64_t resume_step);

  bool is_open() const { return saver_ != nullptr; }
  /// From here on this job writes. Collective
  void open();
  void check_owner(bool now);

  void add_metrics(const nlohmann::json& record);
  /// One of --sample-prompt's. \param number  of the prompt, counted from 1
  void add_sample(const nlohmann::json& sample, int number);
  /// \param only_as_best  for checkpoints/best alone: to go when another one is the best
  void start_save(bool final_one, bool only_as_best = false);
  /// The validation of the state that the checkpoint of this step holds, or will hold once it is written, came after
  /// it: it is written into its run.json, and `best` points to it where it is that. Collective.
  void amend_checkpoint();
  /// True while a checkpoint is being written in the background.
  bool is_saving() const { return saver_ != nullptr && saver_->under_way(); }
  /// Makes a written checkpoint appear once all ranks are done with it. Collective.
  bool finish_save(bool wait);
  double seconds_since_save() const;
  const std::string& save_error() const { return save_error_; }
  /// Empty: none.
  const std::filesystem::path& last_checkpoint() const { return last_checkpoint_; }

  /// A finite loss was computed from the state after `step`.
  void prove(std::int64_t step) { saver_->prove(step); }
  /// The state as it is has no finite loss. \return where `latest` points now, "" when it was left alone
  std::string doubt() { return saver_->doubt(); }
  /// Ends the job: no state that it has now is worth saving. \param why  a sentence without its end
  [[noreturn]] void give_up(const std::string& why);
  void draw_losses() const;
  /// Ends this job's use of the run's folder.
  /// \param why_early  the run is done before its last step: why; else empty
  void end_job(bool stopped, const std::string& why_early);

 private:
  bool old_run_is_there() const;
  void settle_best_checkpoint();
  void open_samples();
  void set_old_run_aside() const;

  const RunContext& context_;
  RunStart& start_;
  MemoryReporter& memory_;
  std::int64_t resume_step_;
  bool keeps_old_run_ = false;  ///< an older run of this name still has the folder
  std::unique_ptr<CheckpointSaver> saver_;
  std::unique_ptr<MetricsFile> metrics_;                        ///< on rank 0
  std::unique_ptr<JobFile> job_;                                ///< on rank 0
  std::int64_t saved_step_ = 0;                                 ///< of the newest save
  std::unique_ptr<EventFile> events_;                           ///< on rank 0; null: not wanted
  std::unique_ptr<MetricsFile> samples_;                        ///< on rank 0; null: there are none
  std::set<std::pair<std::int64_t, std::string>> old_samples_;  ///< steps and prompts of the file as it was
  PublishedBest best_;
  std::chrono::steady_clock::time_point last_save_ = std::chrono::steady_clock::now();
  std::string save_error_;
  std::filesystem::path last_checkpoint_;
};

}  // namespace fsdp::detail
