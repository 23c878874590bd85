#include "lib/chess/evaluation/positions.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "lib/training/data/data_loader.hpp"

namespace fsdp {

bool PositionSample::Drawn::operator<(const Drawn& other) const {
  return std::tie(round, key, position.game, position.move) <
         std::tie(other.round, other.key, other.position.game, other.position.move);
}

void PositionSample::offer(std::int64_t game, const std::string& text, std::size_t first, std::size_t count,
                           const std::vector<bool>& right) {
  const auto seed = sample_key(seed_, game);
  std::vector<std::size_t> moves(count);
  std::iota(moves.begin(), moves.end(), first);
  std::shared_ptr<const std::string> shared;
  for (std::size_t round = 0; round < std::min(count, wanted_); ++round) {
    // Draws the next move in a random order of the game's moves.
    const auto key = sample_key(seed, static_cast<std::int64_t>(round));
    std::swap(moves[round], moves[round + key % (count - round)]);
    Drawn drawn{round, key, {game, moves[round], nullptr, !right.empty() && right[moves[round]]}};
    if (kept_.size() == wanted_) {
      if (!(drawn < *kept_.rbegin())) return;  // later rounds of this game sort after this one and are not kept either
      kept_.erase(std::prev(kept_.end()));
    }
    if (shared == nullptr) shared = std::make_shared<const std::string>(text);
    drawn.position.text = shared;
    kept_.insert(std::move(drawn));
  }
}

std::vector<ChessPosition> PositionSample::take() const {
  std::vector<ChessPosition> positions;
  for (const auto& drawn : kept_) positions.push_back(drawn.position);
  std::ranges::sort(positions, {}, [](const ChessPosition& p) { return std::pair(p.game, p.move); });
  return positions;
}

}  // namespace fsdp
