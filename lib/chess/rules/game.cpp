#include "lib/chess/rules/game.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lib/base/types/index.hpp"
#include "lib/chess/rules/position.hpp"

namespace fsdp::chess {
namespace {

constexpr std::string_view white_space = " \t\n\r\v\f";

const char* name(Kind kind) {
  constexpr std::array names{"nothing", "pawn", "knight", "bishop", "rook", "queen", "king"};
  return element(names, kind);
}

/// Shortens a word of untrusted text and makes it printable.
std::string shown(std::string_view word) {
  constexpr std::size_t longest = 20;
  std::string text(word.substr(0, longest));
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return word.size() > longest ? text + "..." : text;
}

std::string why_illegal(const Position& position, Move move) {
  const auto& board = position.board();
  const auto piece = board[move.from];
  if (piece.kind == Kind::none) return to_string(move.from) + " is empty";
  if (position.is_checkmate()) return "the game is over (CHECKMATE)";
  if (position.is_stalemate()) return "the game is over (STALEMATE)";
  if (piece.color != board.to_move) return fmt::format("{} is to move", chess::name(board.to_move));
  std::vector<Move> moves;
  add_pseudo_moves(board, move.from, moves);
  if (std::ranges::find(moves, move) != moves.end()) {
    return fmt::format("it leaves the {} king in check", chess::name(board.to_move));
  }
  if (std::ranges::find(moves, Move{move.from, move.to, Kind::queen}) != moves.end()) {
    return "it does not say what the pawn becomes";
  }
  return fmt::format("the {} on {} cannot do that", name(piece.kind), to_string(move.from));
}

}  // namespace

GameText split_game(std::string_view text) {
  GameText game;
  for (auto begin = text.find_first_not_of(white_space); begin != std::string_view::npos;) {
    const auto end = std::min(text.find_first_of(white_space, begin), text.size());
    game.moves.push_back(text.substr(begin, end - begin));
    begin = text.find_first_not_of(white_space, end);
  }
  if (!game.moves.empty()) game.result = parse_result(game.moves.back());
  if (game.result) game.moves.pop_back();
  return game;
}

Replay replay(std::span<const std::string_view> moves, const Position& start) {
  Replay done{0, start, {}};
  for (const auto word : moves) {
    const auto number = done.legal_moves + 1;
    const auto move = parse_uci(word);
    if (!move) {
      done.problem = fmt::format("move {} '{}' is not a move like e2e4 or e7e8q", number, shown(word));
      return done;
    }
    if (!done.position.is_legal(*move)) {
      done.problem =
          fmt::format("move {} '{}' is not legal here: {}", number, shown(word), why_illegal(done.position, *move));
      return done;
    }
    done.position.play(*move);
    done.legal_moves = number;
  }
  return done;
}

}  // namespace fsdp::chess
