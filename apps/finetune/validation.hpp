#pragma once
// Validation during and after training: losses on --val-data, games of --val-chess, texts for --sample-prompt, and the
// decisions of --keep-best and --patience. Options are checked before the first step.
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
#include "lib/training/evaluate/generate_text.hpp"
#include "lib/training/record/validation_state.hpp"
#include "lib/training/run/run_clock.hpp"

namespace fsdp::detail {

struct ValidationResult {
  std::vector<Evaluation> sets;
  std::optional<ChessEvaluation> games;
};

/// All sets, then games; the same figures on every rank. Collective.
/// \param progress  gets a line for each as it is there; null: nothing is told
/// \param stopped   as of evaluate_rows() \return nothing: it was stopped
std::optional<ValidationResult> validate(ModelRuntime& runtime, const RunSetup& setup, const Logger& log,
                                         ProgressLine* progress, std::int64_t step,
                                         const std::function<bool()>& stopped);

/// val_loss of the set that decides; of several sets with names val_losses too; games as fsdp-eval tells of them.
/// \param result  none: there was no validation
void report_validation(const RunSetup& setup, const std::optional<ValidationResult>& result, nlohmann::json& report);

class GraphWarnings;
class HealthCheck;

class Validation {
 public:
  Validation(const RunContext& context, RunRecord& record, const HealthCheck& health, MemoryReporter& memory,
             RunClock& clock, GraphWarnings& graphs);
  /// Of the state as it is now; nothing where nothing was asked for. A save that is under way is made to
  /// appear meanwhile. Collective. \return false: the job is to end before; then it is as if there had been none, but
  /// for samples that were written, and the state says that it is due
  bool run();
  /// run() has returned false: the job ends.
  bool is_cut() const { return is_cut_; }
  /// Of the last validation; none: there was none.
  const std::optional<ValidationResult>& result() const { return result_; }
  /// By the last run() the model is the best so far: it is to be saved.
  bool found_the_best() const { return found_the_best_; }
  /// --patience says that the run is over.
  bool out_of_patience() const { return fsdp::out_of_patience(context_.trainer.state().validation, rules_); }
  /// Why it is over before its last step, for people; empty where it is not.
  std::string why_early() const;
  /// The last validation left something for the checkpoint of its state to know.
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

/// What the model goes on from for --sample-prompt's texts, with --sample-chat as a user's messages, once the data says
/// by which template.
/// \pre check_sample_prompts(). \throws UsageError, FormatError where there is no chat template
std::vector<Prompt> sample_prompts(const RunSetup& setup);

/// Goes on from every prompt, as fsdp-eval --prompt --temperature 0 does, and adds the texts to the record. Training
/// goes on as if it had not been. Collective. \param stopped  asked before each, the same answer on every rank
/// \return false: it was stopped
bool write_samples(const RunContext& context, RunRecord& record, const std::function<bool()>& stopped);

/// \return what --keep-best and --patience go by
/// \throws UsageError
DecidingMetric check_validation_options(const TrainOptions& options);

/// \pre the tokenizer is chosen \throws UsageError, FormatError
void check_sample_prompts(const RunSetup& setup);

}  // namespace fsdp::detail
