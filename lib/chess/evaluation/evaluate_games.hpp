#pragma once
// How well a model plays on in games of chess: the next move, whether what it writes is legal, the result.
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
  std::uint64_t seed = 0;       ///< of the positions
  std::int64_t limit = 0;       ///< ids of a game that the model sees
  std::int64_t batch_size = 8;  ///< games per rank at once
  bool show_progress = false;   ///< on rank 0
};

/// Something that the model wrote instead of a legal move.
struct ChessMistake {
  std::string game;   ///< the moves before it
  std::string wrote;  ///< "" when it ended the text
  std::string problem;
};

struct ChessEvaluation {
  std::int64_t games = 0;
  SkippedGames skipped;
  std::int64_t moves = 0;  ///< scored
  std::int64_t moves_right = 0;
  std::int64_t moves_not_scored = 0;  ///< beyond the limit
  std::int64_t games_cut = 0;         ///< that have such moves
  std::int64_t results = 0;           ///< scored: of games whose text ends with one
  std::int64_t results_right = 0;
  std::int64_t positions = 0;
  std::int64_t positions_legal = 0;
  std::int64_t positions_generated = 0;  ///< the model would not write the game's own move there
  std::int64_t not_a_move = 0;
  std::int64_t illegal = 0;
  std::vector<ChessMistake> mistakes;  ///< the first ones
  double seconds = 0;
  Estimate accuracy;         ///< by game
  Estimate result_accuracy;  ///< by game
  Estimate legal;            ///< by position
};

/// Collective; the same result on every rank.
/// \param stopped  asked before each forward pass, the same answer on every rank; may be empty
/// \return nothing: it was stopped
/// \throws FormatError when the data holds no game; what reading it and encode_game() throw
std::optional<ChessEvaluation> evaluate_chess(ModelRuntime& runtime, const Tokenizer& tokenizer, ChessGameSource& games,
                                              const ChessOptions& options, const Logger& log,
                                              const std::function<bool()>& stopped = {});

}  // namespace fsdp
