#include "lib/chess/rules/position.hpp"

#include <algorithm>
#include <stdexcept>

#include "lib/chess/rules/attacks.hpp"
#include "lib/chess/rules/fen.hpp"
#include "lib/chess/rules/pseudo_moves.hpp"

namespace fsdp::chess {
namespace {

constexpr int most_halfmoves_without_progress = 150;

std::vector<Move> legal_moves_from(const Board& board, Square from) {
  std::vector<Move> moves;
  add_pseudo_moves(board, from, moves);
  std::erase_if(moves, [&](Move move) { return !is_safe(board, move); });
  return moves;
}

}  // namespace

Position::Position() : board_(parse_fen(start_fen)) {}

Position Position::from_fen(std::string_view fen) { return Position(parse_fen(fen)); }

std::string Position::fen() const {
  auto takes_en_passant = [&](Move move) {
    return move.to == board_.en_passant && board_[move.from].kind == Kind::pawn;
  };
  const bool taken = board_.en_passant != no_square && std::ranges::any_of(legal_moves(), takes_en_passant);
  return format_fen(board_, taken ? board_.en_passant : no_square);
}

std::vector<Move> Position::legal_moves() const {
  std::vector<Move> moves;
  for (Square from = 0; from < num_squares; ++from) add_pseudo_moves(board_, from, moves);
  std::erase_if(moves, [&](Move move) { return !is_safe(board_, move); });
  return moves;
}

bool Position::has_legal_move() const {
  for (Square from = 0; from < num_squares; ++from) {
    if (!legal_moves_from(board_, from).empty()) return true;
  }
  return false;
}

bool Position::is_legal(Move move) const {
  if (move.from < 0 || move.from >= num_squares) return false;
  std::vector<Move> moves;
  add_pseudo_moves(board_, move.from, moves);
  return std::ranges::find(moves, move) != moves.end() && is_safe(board_, move);
}

void Position::play(Move move) {
  if (!is_legal(move)) throw std::invalid_argument("this move is not legal in position " + fen());
  apply(board_, move);
}

bool Position::in_check() const { return chess::in_check(board_, board_.to_move); }
bool Position::is_checkmate() const { return in_check() && !has_legal_move(); }
bool Position::is_stalemate() const { return !in_check() && !has_legal_move(); }

bool Position::is_insufficient_material() const {
  int knights = 0;
  bool bishops_on[2] = {false, false};  // by color of their square
  for (Square square = 0; square < num_squares; ++square) {
    const auto kind = board_[square].kind;
    if (kind == Kind::pawn || kind == Kind::rook || kind == Kind::queen) return false;
    if (kind == Kind::knight) ++knights;
    if (kind == Kind::bishop) bishops_on[(file_of(square) + rank_of(square)) % 2] = true;
  }
  if (bishops_on[0] && bishops_on[1]) return false;
  return knights == 0 || (knights == 1 && !bishops_on[0] && !bishops_on[1]);
}

std::optional<Outcome> Position::outcome() const {
  const bool stuck = !has_legal_move();
  if (stuck && in_check()) {
    const bool white_mated = board_.to_move == Color::white;
    return Outcome{Termination::checkmate, white_mated ? GameResult::black_wins : GameResult::white_wins};
  }
  if (is_insufficient_material()) return Outcome{Termination::insufficient_material, GameResult::draw};
  if (stuck) return Outcome{Termination::stalemate, GameResult::draw};
  if (board_.halfmove_clock >= most_halfmoves_without_progress) {
    return Outcome{Termination::seventyfive_moves, GameResult::draw};
  }
  return std::nullopt;
}

}  // namespace fsdp::chess
