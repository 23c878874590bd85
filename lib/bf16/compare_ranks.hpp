#pragma once
// One rank beside the others: measured speed, links, versions.
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "lib/bf16/verdict.hpp"

namespace fsdp::detail {

class RankComparison {
 public:
  /// \param ranks  must outlive this object
  explicit RankComparison(const std::vector<RankFacts>& ranks);

  /// Adds to the answer of rank `self` what follows from the others. On a GPU that says native hardware, a measured
  /// ratio near 1, or far below that of the same GPUs elsewhere, makes it emulated.
  void compare(std::size_t self, RankAnswer& answer) const;

 private:
  void judge_speed(const RankFacts& mine, RankAnswer& answer) const;
  void judge_links(const RankFacts& mine, RankAnswer& answer) const;
  void note_libraries(const RankFacts& mine, RankAnswer& answer) const;
  void note_differences(const RankFacts& mine, RankAnswer& answer) const;
  template <typename Value>
  double median_of_others(const std::vector<const RankFacts*>& among, const RankFacts& self, const Value& value) const;

  std::vector<const RankFacts*> ranks_;
  std::vector<const RankFacts*> nodes_;  ///< the first rank of each
  std::vector<std::string> usual_;       ///< of each trait, what most ranks have
};

/// The lowest rank that computes on the same GPU; -1: none.
int rank_on_same_gpu(const std::vector<const RankFacts*>& ranks, const RankFacts& mine);

}  // namespace fsdp::detail
