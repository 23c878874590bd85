#pragma once
// Compares one rank's speed, links and library versions with those of the other ranks.
#include <cstddef>
#include <string>
#include <vector>

#include "lib/bf16/facts.hpp"
#include "lib/bf16/verdict.hpp"

namespace fsdp::detail {

class RankComparison {
 public:
  /// \param ranks  must outlive this object
  explicit RankComparison(const std::vector<RankFacts>& ranks);

  /// Adds findings from comparing rank `self` with the others to `answer`. A GPU that claims native bf16 becomes
  /// emulated when its measured bf16/float32 ratio is near 1, or far below the ratio of equal GPUs in other ranks.
  void compare(std::size_t self, RankAnswer& answer) const;

 private:
  void judge_speed(const RankFacts& own, RankAnswer& answer) const;
  void judge_links(const RankFacts& own, RankAnswer& answer) const;
  void note_libraries(const RankFacts& own, RankAnswer& answer) const;
  void note_differences(const RankFacts& own, RankAnswer& answer) const;
  template <typename Value>
  double median_of_others(const std::vector<const RankFacts*>& among, const RankFacts& self, const Value& value) const;

  std::vector<const RankFacts*> ranks_;
  std::vector<const RankFacts*> nodes_;  ///< the first rank of each node
  std::vector<std::string> usual_;       ///< most frequent value of each trait among the ranks
};

/// \return the lowest other rank that computes on the same GPU; -1: none
int rank_on_same_gpu(const std::vector<const RankFacts*>& ranks, const RankFacts& own);

}  // namespace fsdp::detail
