#pragma once
// Scores of one checkpoint as text, as JSON, and for comparison with another checkpoint.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "lib/chess/evaluation/evaluate_games.hpp"
#include "lib/training/evaluate/evaluate.hpp"
#include "lib/training/evaluate/statistics.hpp"

namespace fsdp {

/// The loss over sequences and metrics derived from it.
struct LossResult {
  Estimate loss;           ///< nats per token, with an interval over sequences
  Estimate perplexity;     ///< exp(loss)
  Estimate bits_per_byte;  ///< for texts; NaN otherwise
  std::int64_t tokens = 0;
  std::int64_t rows = 0;
  std::int64_t bytes = 0;           ///< of the text that the tokens stand for; 0 when unknown
  std::int64_t ids_not_scored = 0;  ///< beyond the longest sequence that the model takes
  double seconds = 0;
};

LossResult loss_result(const RowScores& scores);

/// Rewards of preferences: beta times the log-probability of a side, less that by a reference where there is one.
struct PreferenceResult {
  Estimate accuracy;  ///< share of preferences whose chosen side has the higher reward
  Estimate margin;    ///< reward of the chosen side less that of the rejected one
  double chosen_reward = 0, rejected_reward = 0, chosen_logps = 0, rejected_logps = 0;  ///< means
  std::string right;                                                                    ///< '1' or '0' by preference
  bool has_log_probs = true;  ///< false: a model of rewards gave them
  double seconds = 0;
};

/// \param log_probs  by document, the chosen and the rejected one of each preference. \param reference  may be empty
PreferenceResult preference_result(std::span<const double> log_probs, std::span<const double> reference, double beta);
void add_to_json(const PreferenceResult& result, nlohmann::json& report);
std::vector<std::string> to_text(const PreferenceResult& result);
void add_metrics(const PreferenceResult& result, std::vector<Metric>& metrics);

void add_to_json(const LossResult& result, nlohmann::json& report);
void add_to_json(const ChessEvaluation& result, nlohmann::json& report);
std::vector<std::string> to_text(const LossResult& result);
std::vector<std::string> to_text(const ChessEvaluation& result);
/// Adds the games to `results` and `higher_is_better` as a task, whose form is lm-eval's.
void add_task_of_games(const ChessEvaluation& result, nlohmann::json& report);
/// A comparison for people: the table, as text or as Markdown, then the gates.
std::vector<std::string> to_text(const Comparison& comparison, bool markdown);
/// Appends the metrics of a comparison.
void add_metrics(const LossResult& result, std::vector<Metric>& metrics);
void add_metrics(const ChessEvaluation& result, std::vector<Metric>& metrics);

}  // namespace fsdp
