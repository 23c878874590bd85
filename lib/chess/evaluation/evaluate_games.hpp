#pragma once
// Evaluates a model on games of chess: accuracy of the next move and of the result, and legality of the moves it
// writes.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lib/base/messages/log.hpp"
#include "lib/chess/evaluation/games.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"
#include "lib/training/evaluate/statistics.hpp"

namespace fsdp {

// Draws a random sample of positions from a stream of games.

/// A position in a game, given by the moves before it.
struct ChessPosition {
  std::int64_t game = 0;  ///< number of the game, from 0
  std::size_t move = 0;   ///< index of the game's next move
  std::shared_ptr<const std::string> text;
  bool right = false;  ///< the model would play the game's next move; valid where the game was scored
};

/// Keeps `wanted` positions: one of each game if there are enough games, else two, and so on. The choice depends only
/// on the seed, the numbers of the games and their numbers of moves.
class PositionSample {
 public:
  PositionSample(std::size_t wanted, std::uint64_t seed) : wanted_(wanted), seed_(seed) {}

  /// Offers the positions before the moves [first, first + count) of a game. \param right  one per move; empty: unknown
  void offer(std::int64_t game, const std::string& text, std::size_t first, std::size_t count,
             const std::vector<bool>& right);
  /// \return the sample, ordered by game and move
  std::vector<ChessPosition> take() const;

 private:
  struct Drawn {
    std::size_t round;  ///< number of positions drawn from the same game before this one
    std::uint64_t key;
    ChessPosition position;
    bool operator<(const Drawn& other) const;
  };

  std::size_t wanted_;
  std::uint64_t seed_;
  std::set<Drawn> kept_;
};

// Scores the words of chess games by a model's greedy predictions, and generates words.

enum class WordScore : std::uint8_t {
  no_context,  ///< the word is first in the text, so nothing predicts it
  beyond,      ///< the word lies beyond the limit
  wrong,
  right
};

/// Scores the words of each game in one forward pass. A word is right when each of its ids is the most likely one given
/// the ids before it, and the most likely id after it ends the word; then greedy generation from the text before the
/// word would write it.
/// Collective; ranks may have different games, or none. \param limit  maximum number of ids of a game that the model
/// gets
std::vector<std::vector<WordScore>> score_words(ModelRuntime& runtime, std::span<const ChessSequence> games,
                                                std::int64_t limit, const WordEnds& ends);

/// Generates the next word greedily with the key-value cache, without its leading space. A word longer than
/// `most_bytes` is cut off. \return the word; empty when the model ends the text instead. Collective, with the same
/// arguments and result on all ranks
std::string generate_word(ModelRuntime& runtime, const std::vector<std::int32_t>& prefix, const Tokenizer& tokenizer,
                          const WordEnds& ends, std::size_t most_bytes);

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
  std::vector<ChessMistake> mistakes;  ///< the first few, at most 5
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
