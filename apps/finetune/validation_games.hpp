#pragma once
// --val-chess: how well the model plays at each validation, by the metrics of fsdp-eval --chess.
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "apps/finetune/run_setup.hpp"
#include "lib/chess/evaluation/evaluate_games.hpp"

namespace fsdp::detail {

/// "chess_accuracy", "chess_legal" or "chess_result".
bool is_chess_metric(const std::string& name);

/// \throws UsageError
void check_game_options(const TrainOptions& options);

/// Into setup.games: later nothing of it can fail. Collective, before the first step.
/// \pre tokenizer and metric are chosen. \throws UsageError; FormatError; what reading games and encode_game() throw
void load_validation_games(ProcessGroup& world, RunSetup& setup);

/// Nothing without --val-chess, or where it was stopped. Collective; the same result on every rank.
/// \param stopped  asked before each forward pass, the same answer on every rank; may be empty
std::optional<ChessEvaluation> play_games(ModelRuntime& runtime, const RunSetup& setup, const Logger& log,
                                          const std::function<bool()>& stopped = {});

struct GameScore {
  double value = 0;        ///< NaN: there was nothing to score
  std::int64_t count = 0;  ///< of moves, positions or games
};
/// \pre is_chess_metric(metric)
GameScore game_score(const ChessEvaluation& games, const std::string& metric);

/// For the log.
std::string games_line(std::int64_t step, const ChessEvaluation& games);
/// For metrics.jsonl.
nlohmann::json games_record(std::int64_t step, const ChessEvaluation& games);

}  // namespace fsdp::detail
