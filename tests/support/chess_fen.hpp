#pragma once
// FEN, and the ends of a game that the programs do not need: positions as texts, and outcomes as python-chess has them.
// Source: the PGN standard, section 16.1; FIDE Laws of Chess, 2023, articles 5 and 9.6.2.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/chess/rules/position.hpp"

namespace fsdp::chess {

inline constexpr std::string_view start_fen = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1";

inline constexpr std::string_view piece_letters =
    "pnbrqk";  // in the order of Kind, from Kind::pawn on; upper-case for white
inline constexpr std::string_view castling_letters = "KQkq";
inline constexpr std::size_t longest_fen =
    120;  // at most 71 characters of pieces, and the other fields at their longest
inline constexpr int largest_number = 9999;

inline char to_upper(char lower) { return static_cast<char>(lower - 'a' + 'A'); }

inline std::optional<Piece> parse_piece(char letter) {
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
    // The pawn moved from the square before the en-passant square to the one after it, in its direction.
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

inline std::string format_pieces(const Board& board) {
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
      const char letter = piece_letters[to_index(piece.kind) - 1];
      text += piece.color == Color::white ? to_upper(letter) : letter;
    }
    if (empty > 0) text += std::to_string(empty);
    if (rank > 0) text += '/';
  }
  return text;
}

inline std::string format_castling(const Board& board) {
  std::string text;
  for (std::size_t i = 0; i < castling_letters.size(); ++i) {
    if (board.may_castle[i / 2][i % 2]) text += castling_letters[i];
  }
  return text.empty() ? "-" : text;
}

/// Parses the six fields of a FEN (pieces, side to move, castling rights, en-passant square, half-move clock, full-move
/// number) and checks that the position is valid: one king each, no pawn on the first or last rank, the side that has
/// just moved not in check, castling rights and en-passant square consistent with the pieces. Accepts an en-passant
/// square even if no pawn can take there.
/// \throws FormatError naming the field and its valid values. Source: the PGN standard, section 16.1.
inline Board parse_fen(std::string_view text) { return FenReader(text).read(); }

/// Formats a board as FEN. \param en_passant  square to name, or no_square
inline std::string format_fen(const Board& board, Square en_passant) {
  return fmt::format("{} {} {} {} {} {}", format_pieces(board), board.to_move == Color::white ? 'w' : 'b',
                     format_castling(board), en_passant == no_square ? "-" : to_string(en_passant),
                     board.halfmove_clock, board.fullmove_number);
}

inline Position position_of(std::string_view fen) { return Position(parse_fen(fen)); }

/// Formats the position as FEN, with the en-passant square only if a pawn can legally take there, like python-chess's
/// board.fen().
inline std::string fen_of(const Position& position) {
  const auto& board = position.board();
  auto takes_en_passant = [&](Move move) { return move.to == board.en_passant && board[move.from].kind == Kind::pawn; };
  const bool taken = board.en_passant != no_square && std::ranges::any_of(position.legal_moves(), takes_en_passant);
  return format_fen(board, taken ? board.en_passant : no_square);
}

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

inline std::string_view to_string(Termination termination) {
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

/// Whether neither side can ever give checkmate: bare kings, a single knight, or only bishops on squares of one color.
inline bool is_insufficient_material(const Position& position) {
  const auto& board = position.board();
  int knights = 0;
  bool bishops_on[2] = {false, false};  // by color of their square
  for (Square square = 0; square < num_squares; ++square) {
    const auto kind = board[square].kind;
    if (kind == Kind::pawn || kind == Kind::rook || kind == Kind::queen) return false;
    if (kind == Kind::knight) ++knights;
    if (kind == Kind::bishop) bishops_on[(file_of(square) + rank_of(square)) % 2] = true;
  }
  if (bishops_on[0] && bishops_on[1]) return false;
  return knights == 0 || (knights == 1 && !bishops_on[0] && !bishops_on[1]);
}

/// \return how the game has ended; nullopt while it continues. If several reasons apply, returns the first of
/// checkmate, insufficient material, stalemate, seventy-five moves, as python-chess does
inline std::optional<Outcome> outcome_of(const Position& position) {
  constexpr int most_halfmoves_without_progress = 150;
  const auto& board = position.board();
  const bool stuck = !position.has_legal_move();
  if (stuck && position.in_check()) {
    const bool white_mated = board.to_move == Color::white;
    return Outcome{Termination::checkmate, white_mated ? GameResult::black_wins : GameResult::white_wins};
  }
  if (is_insufficient_material(position)) return Outcome{Termination::insufficient_material, GameResult::draw};
  if (stuck) return Outcome{Termination::stalemate, GameResult::draw};
  if (board.halfmove_clock >= most_halfmoves_without_progress) {
    return Outcome{Termination::seventyfive_moves, GameResult::draw};
  }
  return std::nullopt;
}

}  // namespace fsdp::chess
