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

/// A copy from one rank to another that arrived otherwise than it was sent.
struct WrongTransfer {
  int receiver = 0;
  int sender = 0;  ///< the same rank: it got its own part wrong
};

/// Two or more wrong copies in which one rank took part each time are its fault. Where no rank did, but one host, they
/// are the host's: all of its ranks that took part are named.
/// \param transfers  not empty \param hosts  by rank \return without a majority: all that took part
OddRanks odd_transfers(std::span<const WrongTransfer> transfers, std::span<const std::string> hosts);

}  // namespace fsdp
