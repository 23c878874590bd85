#pragma once
// Some positions of many games, drawn while the games pass by.
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace fsdp {

/// A game up to a move.
struct ChessPosition {
  std::int64_t game = 0;  ///< number, from 0
  std::size_t move = 0;   ///< index of the next one in the game
  std::shared_ptr<const std::string> text;
  bool right = false;  ///< the model would write it; known where the game was scored
};

/// Keeps `wanted` positions: one of each game as long as there are more games than that, then two, and so on. Which
/// ones depends on the seed, the games' numbers and their numbers of moves, and on nothing else.
class PositionSample {
 public:
  PositionSample(std::size_t wanted, std::uint64_t seed) : wanted_(wanted), seed_(seed) {}

  /// Offers the positions before moves [first, first + count) of a game. \param right  by move; empty: not known here
  void offer(std::int64_t game, const std::string& text, std::size_t first, std::size_t count,
             const std::vector<bool>& right);
  /// In the order of the games and their moves.
  std::vector<ChessPosition> take() const;

 private:
  struct Drawn {
    std::size_t round;  ///< how many of the same game come before it
    std::uint64_t key;
    ChessPosition position;
    bool operator<(const Drawn& other) const;
  };

  std::size_t wanted_;
  std::uint64_t seed_;
  std::set<Drawn> kept_;
};

}  // namespace fsdp
