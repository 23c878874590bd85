#pragma once
// Finds ranks whose numbers differ from those of the others though they must be equal, from the numbers alone.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fsdp {

struct OddRanks {
  std::vector<int> ranks;      ///< without a majority: all of those that disagree
  bool has_majority = false;   ///< more than half of the ranks have equal numbers
  std::size_t first_item = 0;  ///< the first one that differs

  /// For messages after the ranks: "has not what the others have"
  std::string how() const;
};

/// \param digests  of each rank, by rank, each with the same items \return no ranks where all are equal
OddRanks odd_ranks(std::span<const std::vector<std::uint64_t>> digests);

/// Each rank has computed the loss of its own rows and of those of the rank before it (rank 0: of the last one's). A
/// rank that computes wrongly differs from both of its neighbours.
/// \param own, previous  by rank, bits of the losses \return the ranks that may be wrong; empty: all agree
OddRanks odd_neighbours(std::span<const std::uint64_t> own, std::span<const std::uint64_t> previous);

/// Numbers that arrived otherwise than they were sent, or in a wrong sum.
struct WrongTransfer {
  int receiver = 0;
  int sender = -1;  ///< -1: not known
};

/// A rank with which more of them went wrong than with any other is the one that is wrong.
/// \param transfers  not empty \return without a majority: all that took part
OddRanks odd_transfers(std::span<const WrongTransfer> transfers);

}  // namespace fsdp
