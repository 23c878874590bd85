#pragma once
// Why a job does not go on: which rank the others wait for, in which collective, and what it does instead.
//
// All ranks make the same collectives of a group in the same order. So two numbers tell which rank is late: the round
// that a rank waits for, and the round that another one has begun last.
#include <span>
#include <string>
#include <vector>

#include "lib/flight/rank_flight.hpp"

namespace fsdp {

struct Verdict {
  bool is_stuck = false;
  bool disagree = false;     ///< the ranks make other collectives: no node's fault
  std::vector<int> ranks;    ///< for which the others wait, or that disagree with them; empty: none, or unknown
  std::vector<int> waiting;  ///< ranks that wait for those
  std::string text;          ///< a sentence without a full stop
};

/// \param flights           of the ranks that are known, by rank
/// \param patience_seconds  waits that are shorter do not count
Verdict verdict_of(std::span<const RankFlight> flights, double patience_seconds);

/// "0-3, 7"
std::string rank_list(std::vector<int> ranks);

}  // namespace fsdp
