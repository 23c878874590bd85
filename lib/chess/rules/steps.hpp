#pragma once
#include <array>
#include <span>

#include "lib/chess/rules/move.hpp"

namespace fsdp::chess {

/// A direction on the board.
struct Step {
  int files;
  int ranks;
};

constexpr std::array<Step, 8> knight_steps{{{1, 2}, {2, 1}, {2, -1}, {1, -2}, {-1, -2}, {-2, -1}, {-2, 1}, {-1, 2}}};
/// First the straight directions, then the diagonal ones.
constexpr std::array<Step, 8> king_steps{{{0, 1}, {1, 0}, {0, -1}, {-1, 0}, {1, 1}, {1, -1}, {-1, -1}, {-1, 1}}};
constexpr std::span<const Step> straight_steps = std::span(king_steps).first(4);
constexpr std::span<const Step> diagonal_steps = std::span(king_steps).last(4);

/// \return the neighbouring square; no_square beyond the edge
constexpr Square neighbor(Square square, Step step) {
  const int file = file_of(square) + step.files, rank = rank_of(square) + step.ranks;
  return file < 0 || file > 7 || rank < 0 || rank > 7 ? no_square : square_at(file, rank);
}

}  // namespace fsdp::chess
