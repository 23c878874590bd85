#pragma once
// Formats the answer for people and programs. Pure functions.
#include <array>
#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/bf16/verdict.hpp"

namespace fsdp {

/// \return a line for each rank, then lines about the whole job; every line ends with '\n'
std::string bf16_table(const std::vector<RankFacts>& ranks, const JobAnswer& answer);

/// verdict, ranks, all_reduce, inside_nodes, between_nodes, slowest_rank, bad_hosts: see docs/fsdp-bf16check.md.
nlohmann::json bf16_json(const std::vector<RankFacts>& ranks, const JobAnswer& answer);

/// \return the bad hosts in the format of `sbatch --exclude`: comma-separated on one line; empty when there are none
std::string exclude_list(const JobAnswer& answer);

}  // namespace fsdp

namespace fsdp::detail {

// Compares one rank's speed, links and library versions with those of the other ranks.

class RankComparison {
 public:
  /// \param ranks  must outlive this object
  explicit RankComparison(const std::vector<RankFacts>& ranks);

  /// Adds findings from comparing rank `self` with the others to `answer`. A GPU that claims native bf16 becomes
  /// emulated when its measured bf16/float32 ratio is near 1, or far below the ratio of equal GPUs in other ranks.
  void compare(std::size_t self, RankAnswer& answer) const;

 private:
  void judge_speed(const RankFacts& mine, RankAnswer& answer) const;
  void judge_links(const RankFacts& mine, RankAnswer& answer) const;
  void note_libraries(const RankFacts& mine, RankAnswer& answer) const;
  void note_differences(const RankFacts& mine, RankAnswer& answer) const;
  template <typename Value>
  double median_of_others(const std::vector<const RankFacts*>& among, const RankFacts& self, const Value& value) const;

  std::vector<const RankFacts*> ranks_;
  std::vector<const RankFacts*> nodes_;  ///< the first rank of each node
  std::vector<std::string> usual_;       ///< most frequent value of each trait among the ranks
};

/// \return the lowest other rank that computes on the same GPU; -1: none
int rank_on_same_gpu(const std::vector<const RankFacts*>& ranks, const RankFacts& mine);

}  // namespace fsdp::detail
