#pragma once
// Evaluates a model on games of chess: accuracy of the next move and of the result, and legality of the moves it
// writes.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/log.hpp"
#include "lib/chess/evaluation/games.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/text/tokenizer/tokenizer.hpp"
#include "lib/training/evaluate/statistics.hpp"

namespace fsdp {

struct ChessOptions {
  std::int64_t positions = 200;
  std::uint64_t seed = 0;       ///< seed for drawing the positions
  std::int64_t limit = 0;       ///< maximum number of token ids of a game that the model gets
  std::int64_t batch_size = 8;  ///< games per rank in a batch
  bool show_progress = false;   ///< on rank 0 only
};

/// An illegal move, or other text, that the model wrote at a position.
struct ChessMistake {
  std::string game;   ///< the moves before the position
  std::string wrote;  ///< the model's text; "" when it ended the text
  std::string problem;
};

struct ChessEvaluation {
  std::int64_t games = 0;
  SkippedGames skipped;
  std::int64_t moves = 0;  ///< number of scored moves
  std::int64_t moves_right = 0;
  std::int64_t moves_not_scored = 0;  ///< moves beyond the limit
  std::int64_t games_cut = 0;         ///< games that have moves beyond the limit
  std::int64_t results = 0;           ///< number of scored results, in games whose text ends with one
  std::int64_t results_right = 0;
  std::int64_t positions = 0;
  std::int64_t positions_legal = 0;
  /// positions where the model would not play the game's own move, so its move was generated
  std::int64_t positions_generated = 0;
  std::int64_t not_a_move = 0;
  std::int64_t illegal = 0;
  std::vector<ChessMistake> mistakes;  ///< a few of them, in order of the games
  double seconds = 0;
  Estimate accuracy;         ///< resampled by game
  Estimate result_accuracy;  ///< resampled by game
  Estimate legal;            ///< resampled by position
};

/// Collective; every rank gets the same result.
/// \param stopped  called before each forward pass, returns the same on every rank; may be empty
/// \return nullopt when stopped
/// \throws FormatError when the data contains no game; exceptions of reading the data and of encode_game()
std::optional<ChessEvaluation> evaluate_chess(ModelRuntime& runtime, const Tokenizer& tokenizer, ChessGameSource& games,
                                              const ChessOptions& options, const Logger& log,
                                              const std::function<bool()>& stopped = {});

}  // namespace fsdp
