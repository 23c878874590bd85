#pragma once
// Validation during and after training: losses on --val-data, games of --val-chess, texts for --sample-prompt, and the
// decisions of --keep-best and --patience. Its options are checked before the first step.
#include <cstddef>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/finetune/run_record.hpp"
#include "apps/finetune/run_setup.hpp"
#include "lib/chess/evaluation/evaluate_games.hpp"
#include "lib/training/evaluate/evaluate.hpp"
#include "lib/training/evaluate/generate.hpp"
#include "lib/training/record/run_manifest.hpp"
#include "lib/training/run/run_clock.hpp"

namespace fsdp::detail {

struct ValidationResult {
  std::vector<Evaluation> sets;
  std::optional<ChessEvaluation> games;
};

/// Evaluates all validation sets, then plays the games. The figures are the same on every rank. Collective.
/// \param progress  receives a line for each result; null: no lines
/// \param stopped   as for evaluate_rows()
/// \return nothing when stopped
std::optional<ValidationResult> validate(ModelRuntime& runtime, const RunSetup& setup, const Logger& log,
                                         Progress* progress, std::int64_t step, const std::function<bool()>& stopped);

/// Adds val_loss of the deciding set, val_losses when sets have names, and the scores of games as in fsdp-eval's
/// report.
/// \param result  empty: there was no validation
void report_validation(const RunSetup& setup, const std::optional<ValidationResult>& result, nlohmann::json& report);

class GraphWarnings;
class HealthCheck;

class Validation {
 public:
  Validation(const RunContext& context, RunRecord& record, const HealthCheck& health, MemoryReporter& memory,
             RunClock& clock, GraphWarnings& graphs);
  /// Validates the current state if anything is to be validated. A background save that finishes meanwhile is
  /// published. Collective.
  /// \return false when the job must end first: no result is then used, only samples that were already written remain,
  /// and the state notes that the validation is due
  bool run();
  /// True after run() returned false: the job ends.
  bool is_cut() const { return is_cut_; }
  /// Result of the last validation; empty: there was none.
  const std::optional<ValidationResult>& result() const { return result_; }
  /// True when the last run() found the best model so far, which must then be saved.
  bool found_the_best() const { return found_the_best_; }
  /// True when --patience ends the run.
  bool out_of_patience() const { return fsdp::out_of_patience(context_.trainer.state().validation, rules_); }
  /// The reason why --patience ended the run before its last step, for messages; empty when it did not.
  std::string why_early() const;
  /// True when --keep-best or --patience needs validations, so the checkpoint of a validated state must record them.
  bool decides() const { return rules_.decide(); }

 private:
  std::optional<ValidationResult> compute();
  bool must_end();
  void take(const ValidationData& set, const Evaluation& result, bool decides);
  void take(const ChessEvaluation& games);
  std::string judge(const std::string& set, std::int64_t count, double value);

  const RunContext& context_;
  RunRecord& record_;
  const HealthCheck& health_;
  MemoryReporter& memory_;
  RunClock& clock_;
  GraphWarnings& graphs_;
  ValidationRules rules_;
  std::optional<ValidationResult> result_;
  bool found_the_best_ = false;
  bool is_cut_ = false;
};

/// Encodes the prompts of --sample-prompt, with --sample-chat as user messages. Call when the data's chat template is
/// known.
/// \pre check_sample_prompts() has passed
/// \throws UsageError; FormatError when there is no chat template
std::vector<Prompt> sample_prompts(const RunSetup& setup);

/// Continues every prompt, as fsdp-eval --prompt --temperature 0 does, and adds the texts to the record. Does not
/// influence training. Collective.
/// \param stopped  called before each prompt; returns the same on every rank
/// \return false when stopped
bool write_samples(const RunContext& context, RunRecord& record, const std::function<bool()>& stopped);

/// \return the metric of --keep-best and --patience
/// \throws UsageError
DecidingMetric check_validation_options(const TrainOptions& options);

/// \pre the tokenizer is chosen
/// \throws UsageError, FormatError
void check_sample_prompts(const RunSetup& setup);

}  // namespace fsdp::detail
