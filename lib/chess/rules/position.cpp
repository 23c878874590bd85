#include "lib/chess/rules/position.hpp"

#include <algorithm>
#include <span>
#include <stdexcept>

#include "lib/chess/rules/board.hpp"
#include "lib/chess/rules/fen.hpp"

namespace fsdp::chess {

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

std::string_view to_string(Termination termination) {
  switch (termination) {
    case Termination::checkmate:
      return "CHECKMATE";
    case Termination::stalemate:
      return "STALEMATE";
    case Termination::insufficient_material:
      return "INSUFFICIENT_MATERIAL";
    case Termination::seventyfive_moves:
      return "SEVENTYFIVE_MOVES";
  }
  throw std::logic_error("not a Termination");
}

namespace {

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

}  // namespace

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
