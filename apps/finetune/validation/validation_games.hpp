#pragma once
// --val-chess measures how well the model plays at each validation, with the metrics of fsdp-eval --chess.
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "apps/finetune/run_setup.hpp"
#include "lib/chess/evaluation/evaluate_games.hpp"

namespace fsdp::detail {

/// True for "chess_accuracy", "chess_legal" and "chess_result".
bool is_chess_metric(const std::string& name);

/// \throws UsageError
void check_game_options(const TrainOptions& options);

/// Loads the games into setup.games and encodes all of them once, so that no later step can fail on them. Collective.
/// \pre tokenizer and metric are chosen
/// \throws UsageError; FormatError; what reading games and encode_game() throw
void load_validation_games(ProcessGroup& world, RunSetup& setup);

/// Returns nothing without --val-chess or when stopped, else the same result on every rank. Collective.
/// \param stopped  called before each forward pass, returns the same on every rank; may be empty
std::optional<ChessEvaluation> play_games(ModelRuntime& runtime, const RunSetup& setup, const Logger& log,
                                          const std::function<bool()>& stopped = {});

struct GameScore {
  double value = 0;        ///< NaN: nothing to score
  std::int64_t count = 0;  ///< number of moves, positions or games
};
/// \pre is_chess_metric(metric)
GameScore game_score(const ChessEvaluation& games, const std::string& metric);

/// Formats a line for the log.
std::string games_line(std::int64_t step, const ChessEvaluation& games);
/// Makes a record for metrics.jsonl.
nlohmann::json games_record(std::int64_t step, const ChessEvaluation& games);

}  // namespace fsdp::detail
