#pragma once
// Draws a random sample of positions from a stream of games.
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace fsdp {

/// A position in a game, given by the moves before it.
struct ChessPosition {
  std::int64_t game = 0;  ///< number of the game, from 0
  std::size_t move = 0;   ///< index of the game's next move
  std::shared_ptr<const std::string> text;
  bool right = false;  ///< the model would play the game's next move; valid where the game was scored
};

/// Keeps `wanted` positions: one of each game if there are enough games, else two, and so on. The choice depends only
/// on the seed, the numbers of the games and their numbers of moves.
class PositionSample {
 public:
  PositionSample(std::size_t wanted, std::uint64_t seed) : wanted_(wanted), seed_(seed) {}

  /// Offers the positions before the moves [first, first + count) of a game. \param right  one per move; empty: unknown
  void offer(std::int64_t game, const std::string& text, std::size_t first, std::size_t count,
             const std::vector<bool>& right);
  /// \return the sample, ordered by game and move
  std::vector<ChessPosition> take() const;

 private:
  struct Drawn {
    std::size_t round;  ///< number of positions drawn from the same game before this one
    std::uint64_t key;
    ChessPosition position;
    bool operator<(const Drawn& other) const;
  };

  std::size_t wanted_;
  std::uint64_t seed_;
  std::set<Drawn> kept_;
};

}  // namespace fsdp
