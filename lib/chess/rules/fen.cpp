#include "lib/chess/rules/fen.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/chess/rules/board.hpp"

namespace fsdp::chess {
namespace {

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

Board parse_fen(std::string_view text) { return FenReader(text).read(); }

std::string format_fen(const Board& board, Square en_passant) {
  return fmt::format("{} {} {} {} {} {}", format_pieces(board), board.to_move == Color::white ? 'w' : 'b',
                     format_castling(board), en_passant == no_square ? "-" : to_string(en_passant),
                     board.halfmove_clock, board.fullmove_number);
}

}  // namespace fsdp::chess
