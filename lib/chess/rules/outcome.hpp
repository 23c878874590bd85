#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace fsdp::chess {

enum class GameResult : std::uint8_t { white_wins, black_wins, draw, unfinished };

/// "1-0", "0-1", "1/2-1/2" and, for a game that was not played to its end, "*", as in PGN.
std::string_view to_string(GameResult result);
/// The reverse; nothing for any other text.
std::optional<GameResult> parse_result(std::string_view text);

/// How a game is over whatever the players want, as far as one position tells. Repetitions need the whole game, and
/// draws by the fiftieth move or the third repetition a player's claim: they are not among these.
enum class Termination : std::uint8_t { checkmate, stalemate, insufficient_material, seventyfive_moves };

/// "CHECKMATE", "STALEMATE", "INSUFFICIENT_MATERIAL", "SEVENTYFIVE_MOVES": the names of python-chess, which
/// laion/strategic_game_chess uses in its column Termination.
std::string_view to_string(Termination termination);

struct Outcome {
  Termination termination;
  GameResult result;  ///< never unfinished
  bool operator==(const Outcome&) const = default;
};

}  // namespace fsdp::chess
