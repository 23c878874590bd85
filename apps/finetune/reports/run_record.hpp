#pragma once
// Writes a run's folder: checkpoints, metrics.jsonl, samples.jsonl, and RUN/job.json, which states how the run's newest
// job was started and how it ended. Moves an older run of the same name aside.
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "apps/finetune/reports/memory_reporter.hpp"
#include "apps/finetune/run_setup.hpp"
#include "lib/training/record/event_file.hpp"
#include "lib/training/record/metrics.hpp"
#include "lib/training/run/run_parts.hpp"
#include "lib/training/run/run_start.hpp"
#include "lib/training/state/best.hpp"
#include "lib/training/state/checkpoint_saver.hpp"

namespace fsdp::detail {

/// Writes RUN/job.json on rank 0. Training continues when the file cannot be written.
class JobFile {
 public:
  /// \param first_step       the first step of this job
  /// \param predicted_bytes  predicted peak memory of a rank; 0: unknown
  JobFile(const RunContext& context, std::int64_t first_step, std::int64_t predicted_bytes);

  /// \param age_seconds  since the save began
  void add_save(const SaveResult& save, std::int64_t step, double age_seconds);
  /// \param outcome    "done", "stopped" or "pruned"
  /// \param why_early  why the run is done before its last step; empty when it is not
  void end(std::string_view outcome, const std::string& why_early);

 private:
  void write();

  const RunContext& context_;
  nlohmann::json content_;
  bool warned_ = false;
};

/// A new run writes nothing before its first step, so that a run that fails at once leaves an older run of its name in
/// place.
class RunRecord final : public RunFolder {
 public:
  /// \param resume_step  lines of later steps are removed from metrics.jsonl; negative: a new run
  RunRecord(const RunContext& context, RunStart& start, MemoryReporter& memory, std::int64_t resume_step);

  bool is_open() const override { return saver_ != nullptr; }
  /// True while an older run of this name has the folder, which this job does not continue.
  bool keeps_old_run() const { return keeps_old_run_; }
  /// Logs the remark on the result, which comes without it.
  SettledBest open() override;
  void check_owner(bool now) override;

  void add_metrics(const nlohmann::json& record);
  /// Adds the text that continues one --sample-prompt. \param number  number of the prompt, from 1
  void add_sample(const nlohmann::json& sample, int number);
  void start_save(bool passing) override;
  std::optional<bool> finish_save(bool wait, const std::function<void()>& appeared) override;
  /// True while a checkpoint is being written in the background.
  bool is_saving() const { return saver_ != nullptr && saver_->under_way(); }
  std::optional<bool> amend_checkpoint() override;
  bool prune(std::int64_t proven_step) override;
  void strip(std::int64_t proven_step, bool wait) override;
  void keep_for_good(std::int64_t step) override { saver_->keep_for_good(step); }
  double seconds_since_save() const override;
  const std::string& save_error() const override { return save_error_; }
  bool make_link(const RunAction& action, const RunLife& life) override;
  [[noreturn]] void give_up(const std::string& why, const RunLife& life) override;
  /// The newest checkpoint; empty: none.
  const std::filesystem::path& last_checkpoint() const { return last_checkpoint_; }

  /// Draws RUN/loss.svg on rank 0.
  void draw_losses() const;
  /// Ends this job's use of the run's folder.
  /// \param outcome    as for JobFile::end()
  /// \param why_early  why the run is done before its last step; empty when it is not
  void end_job(std::string_view outcome, const std::string& why_early);

 private:
  bool old_run_is_there() const;
  void log_disk() const;
  SettledBest reconcile_best_checkpoint();
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
  std::int64_t saved_step_ = 0;                                 ///< step of the newest save
  std::unique_ptr<EventFile> events_;                           ///< on rank 0; null: not wanted
  std::unique_ptr<MetricsFile> samples_;                        ///< on rank 0; null: no samples
  std::set<std::pair<std::int64_t, std::string>> old_samples_;  ///< steps and prompts in the file before this job
  std::chrono::steady_clock::time_point last_save_ = std::chrono::steady_clock::now();
  std::string save_error_;
  std::filesystem::path last_checkpoint_;
  std::set<RunActionKind> warned_;  ///< of links that cannot be made
};

}  // namespace fsdp::detail
