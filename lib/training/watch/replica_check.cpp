#include "lib/training/watch/replica_check.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "lib/base/types/index.hpp"

namespace fsdp {

OddRanks odd_ranks(std::span<const std::vector<std::uint64_t>> digests) {
  std::map<std::vector<std::uint64_t>, int> counts;
  for (const auto& digest : digests) ++counts[digest];
  OddRanks odd;
  if (counts.size() <= 1) return odd;
  const auto most =
      std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  odd.has_majority = 2 * static_cast<std::size_t>(most->second) > digests.size();
  const auto& reference = odd.has_majority ? most->first : digests.front();
  odd.first_item = reference.size();
  for (std::size_t rank = 0; rank < digests.size(); ++rank) {
    const auto& digest = digests[rank];
    if (odd.has_majority && digest == reference) continue;
    odd.ranks.push_back(static_cast<int>(rank));
    const auto differs = std::mismatch(reference.begin(), reference.end(), digest.begin(), digest.end());
    odd.first_item = std::min(odd.first_item, static_cast<std::size_t>(differs.first - reference.begin()));
  }
  return odd;
}

OddRanks odd_neighbours(std::span<const std::uint64_t> own, std::span<const std::uint64_t> previous) {
  const auto size = own.size();
  std::map<int, int> mismatches;  // by rank
  for (std::size_t rank = 0; rank < size; ++rank) {
    const auto before = (rank + size - 1) % size;
    if (previous[rank] == own[before]) continue;
    ++mismatches[static_cast<int>(before)];
    ++mismatches[static_cast<int>(rank)];
  }
  OddRanks odd;
  if (mismatches.empty()) return odd;
  const bool tells = size > 2 && std::ranges::any_of(mismatches, [](const auto& one) { return one.second > 1; });
  for (const auto& [rank, count] : mismatches) {
    if (!tells || count > 1) odd.ranks.push_back(rank);
  }
  odd.has_majority = tells;
  return odd;
}

OddRanks odd_transfers(std::span<const WrongTransfer> transfers, std::span<const std::string> hosts) {
  std::map<int, std::size_t> by_rank;
  std::map<std::string, std::size_t> by_host;
  for (const auto& [receiver, sender] : transfers) {
    for (const int rank : std::set{receiver, sender}) ++by_rank[rank];
    for (const auto& host : std::set{hosts[to_index(receiver)], hosts[to_index(sender)]}) ++by_host[host];
  }
  const auto always = [&](const auto& one) { return transfers.size() > 1 && one.second == transfers.size(); };
  const bool is_rank = std::ranges::count_if(by_rank, always) == 1;
  const bool is_host = !is_rank && by_host.size() > 1 && std::ranges::count_if(by_host, always) == 1;
  OddRanks odd;
  odd.has_majority = is_rank || is_host;
  for (const auto& one : by_rank) {
    const bool is_named = is_rank ? always(one) : !is_host || always(*by_host.find(hosts[to_index(one.first)]));
    if (is_named) odd.ranks.push_back(one.first);
  }
  return odd;
}

std::string OddRanks::how() const {
  if (!has_majority) return "disagree";
  return ranks.size() == 1 ? "has not what the others have" : "have not what the others have";
}

}  // namespace fsdp
