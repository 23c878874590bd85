#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace fsdp::chess {

enum class GameResult : std::uint8_t { white_wins, black_wins, draw, unfinished };

/// PGN notation: "1-0", "0-1", "1/2-1/2", and "*" for an unfinished game.
std::string_view to_string(GameResult result);
/// Inverse of to_string(); nullopt for any other text.
std::optional<GameResult> parse_result(std::string_view text);

/// Reasons that end a game automatically and can be seen from one position. Repetition needs the whole game, and draws
/// by the fifty-move rule or threefold repetition need a player's claim, so they are not included.
enum class Termination : std::uint8_t { checkmate, stalemate, insufficient_material, seventyfive_moves };

/// "CHECKMATE", "STALEMATE", "INSUFFICIENT_MATERIAL", "SEVENTYFIVE_MOVES": names of python-chess, which the column
/// Termination of laion/strategic_game_chess uses.
std::string_view to_string(Termination termination);

struct Outcome {
  Termination termination;
  GameResult result;  ///< never GameResult::unfinished
  bool operator==(const Outcome&) const = default;
};

}  // namespace fsdp::chess
