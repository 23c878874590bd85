// Answers chess_rules_test.py: for each line of tab-separated fields it prints one line, for "walk" several:
//   game FEN MOVES   -> number of legal moves, the text's result, FEN and outcome after them, the problem
//   walk FEN MOVES   -> before the first and after each move: FEN, check or -, outcome, the legal moves
//   fen  FEN         -> "ok" and the FEN as we write it, or "error" and the reason
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/chess/rules/game.hpp"
#include "tests/support/chess_fen.hpp"

namespace {

using namespace fsdp::chess;

std::string outcome_text(const Position& position) {
  const auto outcome = outcome_of(position);
  if (!outcome) return "-";
  return std::string(to_string(outcome->termination)) + " " + std::string(to_string(outcome->result));
}

std::string legal_moves_of(const Position& position) {
  std::vector<std::string> moves;
  for (const auto move : position.legal_moves()) moves.push_back(to_uci(move));
  std::ranges::sort(moves);
  std::string text;
  for (const auto& move : moves) text += (text.empty() ? "" : " ") + move;
  return text;
}

void game(const Position& start, std::string_view text) {
  const auto split = split_game(text);
  const auto done = replay(split.moves, start);
  std::cout << done.legal_moves << '\t' << (split.result ? to_string(*split.result) : "-") << '\t'
            << fen_of(done.position) << '\t' << outcome_text(done.position) << '\t' << done.problem << '\n';
}

void walk(const Position& start, std::string_view text) {
  auto position = start;
  const auto moves = split_game(text).moves;
  for (std::size_t i = 0;; ++i) {
    std::cout << fen_of(position) << '\t' << (position.in_check() ? "check" : "-") << '\t' << outcome_text(position)
              << '\t' << legal_moves_of(position) << '\n';
    if (i == moves.size()) return;
    position.play(parse_uci(moves[i]).value());
  }
}

void fen(const std::string& text) {
  try {
    const auto written = fen_of(position_of(text));
    std::cout << "ok\t" << written << '\n';
  } catch (const fsdp::FormatError& error) {
    std::cout << "error\t" << error.what() << '\n';
  }
}

}  // namespace

int main() try {
  for (std::string line; std::getline(std::cin, line);) {
    const auto first = line.find('\t'), second = line.find('\t', first + 1);
    const auto command = line.substr(0, first), position = line.substr(first + 1, second - first - 1);
    if (command == "fen") {
      fen(position);
    } else if (command == "game") {
      game(position_of(position), line.substr(second + 1));
    } else if (command == "walk") {
      walk(position_of(position), line.substr(second + 1));
    } else {
      throw std::runtime_error("unknown command " + command);
    }
  }
  return std::cout.flush() ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
