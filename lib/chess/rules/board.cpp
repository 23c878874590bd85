#include "lib/chess/rules/board.hpp"

#include <cstdlib>

namespace fsdp::chess {
namespace {

constexpr std::string_view promotion_letters = "nbrq";  // in the order of Kind, from Kind::knight on

}  // namespace

std::optional<Square> parse_square(std::string_view text) {
  if (text.size() != 2 || text[0] < 'a' || text[0] > 'h' || text[1] < '1' || text[1] > '8') return std::nullopt;
  return square_at(text[0] - 'a', text[1] - '1');
}

std::string to_string(Square square) {
  return {static_cast<char>('a' + file_of(square)), static_cast<char>('1' + rank_of(square))};
}

std::optional<Move> parse_uci(std::string_view text) {
  if (text.size() != 4 && text.size() != 5) return std::nullopt;
  const auto from = parse_square(text.substr(0, 2)), to = parse_square(text.substr(2, 2));
  if (!from || !to) return std::nullopt;
  if (text.size() == 4) return Move{*from, *to};
  const auto letter = promotion_letters.find(text[4]);
  if (letter == std::string_view::npos) return std::nullopt;
  return Move{*from, *to, static_cast<Kind>(static_cast<int>(Kind::knight) + static_cast<int>(letter))};
}

std::string to_uci(Move move) {
  std::string text = to_string(move.from) + to_string(move.to);
  if (move.promotion != Kind::none) {
    text += promotion_letters.at(static_cast<std::size_t>(move.promotion) - static_cast<std::size_t>(Kind::knight));
  }
  return text;
}

namespace {

/// A king or rook that leaves its original square, or a rook that is captured there, permanently loses castling rights.
void end_castling_from(Board& board, Square square) {
  for (const auto color : {Color::white, Color::black}) {
    auto& may_castle = board.may_castle[static_cast<std::size_t>(color)];
    const int rank = home_rank(color);
    if (square == square_at(4, rank)) may_castle = {false, false};
    if (square == square_at(7, rank)) may_castle[king_side] = false;
    if (square == square_at(0, rank)) may_castle[queen_side] = false;
  }
}

void shift(Board& board, Square from, Square to) {
  put(board, to, board[from]);
  board[from] = {};
}

}  // namespace

void put(Board& board, Square square, Piece piece) {
  board[square] = piece;
  if (piece.kind == Kind::king) board.kings[static_cast<std::size_t>(piece.color)] = square;
}

void apply(Board& board, Move move) {
  const Piece moved = board[move.from];
  const bool pawn = moved.kind == Kind::pawn;
  const bool captures = board[move.to].kind != Kind::none;
  const int from_rank = rank_of(move.from), to_rank = rank_of(move.to);

  shift(board, move.from, move.to);
  if (pawn && move.to == board.en_passant) board[square_at(file_of(move.to), from_rank)] = {};
  if (move.promotion != Kind::none) board[move.to].kind = move.promotion;
  if (moved.kind == Kind::king && std::abs(file_of(move.to) - file_of(move.from)) == 2) {
    const bool to_king_side = file_of(move.to) > file_of(move.from);
    shift(board, square_at(to_king_side ? 7 : 0, to_rank), square_at(to_king_side ? 5 : 3, to_rank));
  }

  end_castling_from(board, move.from);
  end_castling_from(board, move.to);
  const bool advances_two = pawn && std::abs(to_rank - from_rank) == 2;
  board.en_passant = advances_two ? square_at(file_of(move.to), (from_rank + to_rank) / 2) : no_square;
  board.halfmove_clock = pawn || captures ? 0 : board.halfmove_clock + 1;
  if (board.to_move == Color::black) ++board.fullmove_number;
  board.to_move = opponent(board.to_move);
}

namespace {

bool holds(const Board& board, Square square, Piece piece) { return square != no_square && board[square] == piece; }

/// Follows `steps` from `square` to the first piece and tests whether it is a queen or the given kind of slider of
/// color `by`.
bool attacked_along(const Board& board, Square square, std::span<const Step> steps, Kind slider, Color by) {
  for (const auto step : steps) {
    auto at = neighbor(square, step);
    while (at != no_square && board[at].kind == Kind::none) at = neighbor(at, step);
    if (holds(board, at, {slider, by}) || holds(board, at, {Kind::queen, by})) return true;
  }
  return false;
}

}  // namespace

bool is_attacked(const Board& board, Square square, Color by) {
  for (const int files : {-1, 1}) {
    if (holds(board, neighbor(square, {files, -forward(by)}), {Kind::pawn, by})) return true;
  }
  for (const auto step : knight_steps) {
    if (holds(board, neighbor(square, step), {Kind::knight, by})) return true;
  }
  for (const auto step : king_steps) {
    if (holds(board, neighbor(square, step), {Kind::king, by})) return true;
  }
  return attacked_along(board, square, straight_steps, Kind::rook, by) ||
         attacked_along(board, square, diagonal_steps, Kind::bishop, by);
}

bool in_check(const Board& board, Color color) { return is_attacked(board, board.king(color), opponent(color)); }

}  // namespace fsdp::chess
