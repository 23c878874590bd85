#include "lib/chess/rules/position.hpp"

#include <algorithm>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <vector>

#include "lib/base/types/index.hpp"

namespace fsdp::chess {
namespace {

constexpr std::string_view promotion_letters = "nbrq";  // in the order of Kind, from Kind::knight on

/// A king or rook that leaves its original square, or a rook that is captured there, permanently loses castling rights.
void end_castling_from(Board& board, Square square) {
  for (const auto color : {Color::white, Color::black}) {
    auto& may_castle = element(board.may_castle, color);
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

/// Generates the moves of one piece.
class PieceMoves {
 public:
  PieceMoves(const Board& board, Square from, std::vector<Move>& moves) : board_(board), from_(from), moves_(moves) {}

  void pawn() {
    const auto ahead = neighbor(from_, {0, up_});
    if (ahead != no_square && is_empty(ahead)) {
      pawn_to(ahead);
      const bool first_move = rank_of(from_) == home_rank(us_) + up_;
      const auto two_ahead = neighbor(ahead, {0, up_});
      if (first_move && is_empty(two_ahead)) pawn_to(two_ahead);
    }
    for (const int files : {-1, 1}) {
      const auto to = neighbor(from_, {files, up_});
      if (to != no_square && (is_theirs(to) || to == board_.en_passant)) pawn_to(to);
    }
  }

  void leap(std::span<const Step> steps) {
    for (const auto step : steps) {
      const auto to = neighbor(from_, step);
      if (to != no_square && (is_empty(to) || is_theirs(to))) moves_.push_back({from_, to});
    }
  }

  void slide(std::span<const Step> steps) {
    for (const auto step : steps) {
      auto to = neighbor(from_, step);
      for (; to != no_square && is_empty(to); to = neighbor(to, step)) moves_.push_back({from_, to});
      if (to != no_square && is_theirs(to)) moves_.push_back({from_, to});
    }
  }

  void castle(Wing wing) {
    if (!board_.may_castle_to(us_, wing)) return;
    const int toward_rook = wing == king_side ? 1 : -1;
    const auto rook = square_at(wing == king_side ? 7 : 0, home_rank(us_));
    for (auto between = from_ + toward_rook; between != rook; between += toward_rook) {
      if (!is_empty(between)) return;
    }
    const auto them = opponent(us_);
    if (is_attacked(board_, from_, them) || is_attacked(board_, from_ + toward_rook, them)) return;
    moves_.push_back({from_, from_ + 2 * toward_rook});
  }

 private:
  bool is_empty(Square square) const { return board_[square].kind == Kind::none; }
  bool is_theirs(Square square) const { return !is_empty(square) && board_[square].color != us_; }

  void pawn_to(Square to) {
    if (rank_of(to) != home_rank(opponent(us_))) return moves_.push_back({from_, to});
    for (const auto kind : {Kind::queen, Kind::rook, Kind::bishop, Kind::knight}) moves_.push_back({from_, to, kind});
  }

  const Board& board_;
  const Square from_;
  std::vector<Move>& moves_;
  const Color us_ = board_.to_move;
  const int up_ = forward(us_);
};

Board initial_board() {
  constexpr std::array pieces{Kind::rook, Kind::knight, Kind::bishop, Kind::queen,
                              Kind::king, Kind::bishop, Kind::knight, Kind::rook};
  Board board;
  for (const auto color : {Color::white, Color::black}) {
    const int home = home_rank(color);
    for (int file = 0; file < 8; ++file) {
      put(board, square_at(file, home), {element(pieces, file), color});
      put(board, square_at(file, home + forward(color)), {Kind::pawn, color});
    }
    element(board.may_castle, color) = {true, true};
  }
  return board;
}

std::vector<Move> legal_moves_from(const Board& board, Square from) {
  std::vector<Move> moves;
  add_pseudo_moves(board, from, moves);
  std::erase_if(moves, [&](Move move) { return !is_safe(board, move); });
  return moves;
}

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
    text += promotion_letters.at(to_index(move.promotion) - to_index(Kind::knight));
  }
  return text;
}

void put(Board& board, Square square, Piece piece) {
  board[square] = piece;
  if (piece.kind == Kind::king) element(board.kings, piece.color) = square;
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

std::string_view to_string(GameResult result) {
  switch (result) {
    case GameResult::white_wins:
      return "1-0";
    case GameResult::black_wins:
      return "0-1";
    case GameResult::draw:
      return "1/2-1/2";
    case GameResult::unfinished:
      return "*";
  }
  throw std::logic_error("not a GameResult");
}

std::optional<GameResult> parse_result(std::string_view text) {
  for (const auto result : {GameResult::white_wins, GameResult::black_wins, GameResult::draw, GameResult::unfinished}) {
    if (text == to_string(result)) return result;
  }
  return std::nullopt;
}

void add_pseudo_moves(const Board& board, Square from, std::vector<Move>& moves) {
  const auto piece = board[from];
  if (piece.color != board.to_move) return;
  PieceMoves of(board, from, moves);
  switch (piece.kind) {
    case Kind::none:
      return;
    case Kind::pawn:
      return of.pawn();
    case Kind::knight:
      return of.leap(knight_steps);
    case Kind::bishop:
      return of.slide(diagonal_steps);
    case Kind::rook:
      return of.slide(straight_steps);
    case Kind::queen:
      return of.slide(king_steps);
    case Kind::king:
      of.leap(king_steps);
      of.castle(king_side);
      of.castle(queen_side);
      return;
  }
}

bool is_safe(const Board& board, Move move) {
  auto after = board;
  apply(after, move);
  return !in_check(after, board.to_move);
}

Position::Position() : board_(initial_board()) {}

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
  if (!is_legal(move)) throw std::invalid_argument(to_uci(move) + " is not legal in this position");
  apply(board_, move);
}

bool Position::in_check() const { return chess::in_check(board_, board_.to_move); }
bool Position::is_checkmate() const { return in_check() && !has_legal_move(); }
bool Position::is_stalemate() const { return !in_check() && !has_legal_move(); }

}  // namespace fsdp::chess
