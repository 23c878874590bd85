#pragma once
// Validation during and after training: losses on --val-data, games of --val-chess, benchmarks of --val-tasks, and the
// decisions of --keep-best and --patience. Its options are checked before the first step.
#include <cstddef>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/finetune/reports/run_record.hpp"
#include "apps/finetune/run_setup.hpp"
#include "apps/finetune/validation/validation_tasks.hpp"
#include "lib/chess/evaluation/evaluate_games.hpp"
#include "lib/training/evaluate/evaluate.hpp"
#include "lib/training/record/run_manifest.hpp"
#include "lib/training/run/run_clock.hpp"
#include "lib/training/run/run_parts.hpp"

namespace fsdp::detail {

/// The parts of a validation: each may have an interval of its own.
struct ValidationParts {
  bool data = true;  ///< validation sets, games and samples
  bool tasks = true;
};

struct ValidationResult {
  std::vector<Evaluation> sets;  ///< empty: not scored
  std::optional<ChessEvaluation> games;
  std::optional<TaskEvaluation> tasks;
};

/// Evaluates all validation sets, then plays the games and asks the tasks. The figures are the same on every rank.
/// Collective. \param progress  receives a line for each result; null: no lines \param stopped   as for evaluate_rows()
/// \return nothing when stopped
std::optional<ValidationResult> validate(ModelRuntime& runtime, const RunSetup& setup, const ValidationParts& parts,
                                         const Logger& log, Progress* progress, std::int64_t step,
                                         const std::function<bool()>& stopped);

/// Adds val_loss of the deciding set, val_losses when sets have names, the scores of games as in fsdp-eval's report,
/// and the figures of tasks.
/// \param result  empty: there was no validation
void report_validation(const RunSetup& setup, const std::optional<ValidationResult>& result, nlohmann::json& report);

/// Reports a job that only evaluates. \return stopped_early when there is no result; nothing is kept for the next start
ExitCode report_evaluation(const RunSetup& setup, const std::optional<ValidationResult>& result,
                           nlohmann::json& report);

class Validation final : public RunValidation {
 public:
  Validation(const RunContext& context, RunRecord& record, MemoryReporter& memory, RunClock& clock)
      : context_(context), record_(record), memory_(memory), clock_(clock) {}
  /// When the job must end first, samples that were already written remain. \pre RunSetup::validates()
  bool run(const std::function<void()>& poll) override;
  std::optional<DecidingValue> deciding_value() const override;
  /// True if the newest loss is above the median of what earlier runs of a sweep had at this step.
  bool falls_behind() const override;
  /// The reason, for messages. \pre falls_behind()
  std::string why_behind() const;
  void tell(const RunLife& life) override;
  double probe_loss() override;
  /// The newest result of each part; empty: there was no validation.
  const std::optional<ValidationResult>& result() const { return newest_; }

 private:
  std::optional<ValidationResult> compute(const std::function<void()>& poll);
  ValidationParts parts_due() const;
  std::vector<double> losses_to_beat() const;
  void tell_set(const ValidationData& set, const Evaluation& result, const std::string& verdict);

  const RunContext& context_;
  RunRecord& record_;
  MemoryReporter& memory_;
  RunClock& clock_;
  std::optional<ValidationResult> result_;  ///< of the last validation
  std::optional<ValidationResult> newest_;
};

/// The rules of --keep-best and --patience.
ValidationRules validation_rules(const RunSetup& setup);

/// True when the patience count in the checkpoint belongs to another run: a run in another folder, or one with another
/// metric or other data.
bool counts_for_another(const RunSetup& setup, const ValidationState& state);

/// The reason why --patience ended the run, for messages.
std::string why_out_of_patience(const RunSetup& setup, const ValidationState& state, const ValidationRules& rules);

/// \return the metric of --keep-best and --patience
/// \throws UsageError
DecidingMetric check_validation_options(const TrainOptions& options);

}  // namespace fsdp::detail
