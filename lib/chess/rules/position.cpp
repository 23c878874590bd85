#include "lib/chess/rules/position.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <vector>

#include "lib/base/error.hpp"

namespace fsdp::chess {
namespace {

constexpr std::string_view promotion_letters = "nbrq";  // in the order of Kind, from Kind::knight on

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

constexpr int most_halfmoves_without_progress = 150;

std::vector<Move> legal_moves_from(const Board& board, Square from) {
  std::vector<Move> moves;
  add_pseudo_moves(board, from, moves);
  std::erase_if(moves, [&](Move move) { return !is_safe(board, move); });
  return moves;
}

constexpr std::string_view piece_letters = "pnbrqk";  // in the order of Kind, from Kind::pawn on; upper-case for white
constexpr std::string_view castling_letters = "KQkq";
constexpr std::size_t longest_fen = 120;  // at most 71 characters of pieces, and the other fields at their longest
constexpr int largest_number = 9999;

char to_upper(char lower) { return static_cast<char>(lower - 'a' + 'A'); }

std::optional<Piece> parse_piece(char letter) {
  const bool white = letter >= 'A' && letter <= 'Z';
  const auto kind = piece_letters.find(white ? static_cast<char>(letter - 'A' + 'a') : letter);
  if (kind == std::string_view::npos) return std::nullopt;
  return Piece{static_cast<Kind>(kind + 1), white ? Color::white : Color::black};
}

class FenReader {
 public:
  explicit FenReader(std::string_view text) : text_(text) {}

  Board read() {
    const auto fields = split();
    read_pieces(fields[0]);
    if (fields[1] != "w" && fields[1] != "b") fail("the side to move should be w or b, not '{}'", fields[1]);
    board_.to_move = fields[1] == "w" ? Color::white : Color::black;
    read_castling(fields[2]);
    read_en_passant(fields[3]);
    board_.halfmove_clock = number(fields[4], 0, "half-move clock");
    board_.fullmove_number = number(fields[5], 1, "full-move number");
    const auto moved = opponent(board_.to_move);
    if (in_check(board_, moved)) {
      fail("the {} king is in check, but {} is to move", name(moved), name(board_.to_move));
    }
    return board_;
  }

 private:
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> what, Args&&... args) const {
    throw FormatError(fmt::format("FEN '{}': {}", text_, fmt::format(what, std::forward<Args>(args)...)));
  }

  std::vector<std::string_view> split() const {
    if (text_.size() > longest_fen) {
      throw FormatError(fmt::format("a FEN has at most {} characters, not {}", longest_fen, text_.size()));
    }
    std::vector<std::string_view> fields(1);
    for (std::size_t i = 0, begin = 0; i < text_.size(); ++i) {
      if (text_[i] == ' ') {
        fields.emplace_back();
        begin = i + 1;
      } else {
        fields.back() = text_.substr(begin, i + 1 - begin);
      }
    }
    if (fields.size() != 6) fail("6 fields with one space between them are needed, not {}", fields.size());
    return fields;
  }

  void read_pieces(std::string_view field) {
    int file = 0, rank = 7;
    for (const char letter : field) {
      if (letter == '/') {
        if (file != 8 || rank == 0) fail("the pieces should be eight ranks of eight squares");
        file = 0, --rank;
      } else if (letter >= '1' && letter <= '8') {
        file += letter - '0';
      } else if (const auto piece = parse_piece(letter); !piece) {
        fail("'{}' is not a piece", letter);
      } else if (file < 8) {
        put(board_, square_at(file++, rank), *piece);
      } else {
        ++file;
      }
      if (file > 8) fail("rank {} has more than eight squares", rank + 1);
    }
    if (file != 8 || rank != 0) fail("the pieces should be eight ranks of eight squares");
    for (const auto color : {Color::white, Color::black}) {
      const auto kings = std::ranges::count(board_.squares, Piece{Kind::king, color});
      if (kings != 1) fail("there should be one {} king, not {}", name(color), kings);
    }
    for (int at = 0; at < 8; ++at) {
      for (const auto square : {square_at(at, 0), square_at(at, 7)}) {
        if (board_[square].kind == Kind::pawn) fail("a pawn cannot stand on {}", to_string(square));
      }
    }
  }

  void read_castling(std::string_view field) {
    if (field == "-") return;
    if (field.empty()) fail("the castling rights should be some of KQkq, or -");
    for (const char letter : field) {
      const auto index = castling_letters.find(letter);
      if (index == std::string_view::npos) fail("the castling rights should be some of KQkq, or -, not '{}'", field);
      const auto color = index < 2 ? Color::white : Color::black;
      auto& right = board_.may_castle[index / 2][index % 2];
      if (right) fail("the castling rights name {} twice", letter);
      right = true;
      const auto rook = square_at(index % 2 == king_side ? 7 : 0, home_rank(color));
      if (board_.king(color) != square_at(4, home_rank(color)) || board_[rook] != Piece{Kind::rook, color}) {
        fail("castling right {} needs the king and that rook on their first squares", letter);
      }
    }
  }

  void read_en_passant(std::string_view field) {
    if (field == "-") return;
    const auto square = parse_square(field);
    if (!square) fail("the en-passant square should be a square or -, not '{}'", field);
    const auto moved = opponent(board_.to_move);
    const int up = forward(moved);
    // The pawn moved from the square behind the en-passant square to the one ahead of it.
    if (rank_of(*square) != home_rank(moved) + 2 * up || board_[*square].kind != Kind::none ||
        board_[neighbor(*square, {0, -up})].kind != Kind::none ||
        board_[neighbor(*square, {0, up})] != Piece{Kind::pawn, moved}) {
      fail("no {} pawn can have passed {} with its last move", name(moved), field);
    }
    board_.en_passant = *square;
  }

  int number(std::string_view field, int least, const char* what) const {
    int value = -1;
    const auto end = field.data() + field.size();
    const auto [read_to, error] = std::from_chars(field.data(), end, value);
    if (error != std::errc() || read_to != end || value < least || value > largest_number) {
      fail("the {} should be a number from {} to {}, not '{}'", what, least, largest_number, field);
    }
    return value;
  }

  std::string_view text_;
  Board board_;
};

std::string format_pieces(const Board& board) {
  std::string text;
  for (int rank = 7; rank >= 0; --rank) {
    int empty = 0;
    for (int file = 0; file < 8; ++file) {
      const auto piece = board[square_at(file, rank)];
      if (piece.kind == Kind::none) {
        ++empty;
        continue;
      }
      if (empty > 0) text += std::to_string(empty);
      empty = 0;
      const char letter = piece_letters[static_cast<std::size_t>(piece.kind) - 1];
      text += piece.color == Color::white ? to_upper(letter) : letter;
    }
    if (empty > 0) text += std::to_string(empty);
    if (rank > 0) text += '/';
  }
  return text;
}

std::string format_castling(const Board& board) {
  std::string text;
  for (std::size_t i = 0; i < castling_letters.size(); ++i) {
    if (board.may_castle[i / 2][i % 2]) text += castling_letters[i];
  }
  return text.empty() ? "-" : text;
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
    text += promotion_letters.at(static_cast<std::size_t>(move.promotion) - static_cast<std::size_t>(Kind::knight));
  }
  return text;
}

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

Board parse_fen(std::string_view text) { return FenReader(text).read(); }

std::string format_fen(const Board& board, Square en_passant) {
  return fmt::format("{} {} {} {} {} {}", format_pieces(board), board.to_move == Color::white ? 'w' : 'b',
                     format_castling(board), en_passant == no_square ? "-" : to_string(en_passant),
                     board.halfmove_clock, board.fullmove_number);
}

}  // namespace fsdp::chess
