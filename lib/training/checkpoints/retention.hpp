#pragma once
// Which of a run's checkpoints are no longer to be kept.
#include <cstdint>
#include <vector>

namespace fsdp {

struct KnownCheckpoint {
  std::int64_t step = 0;
  bool only_as_best = false;    ///< saved for `best` alone
  std::int64_t best_step = -1;  ///< of the checkpoint that was the best when it was saved; -1: none was
};

struct RetentionRules {
  int keep_last = 0;              ///< of those that were not saved for `best` alone; 0: all
  std::int64_t proven_step = -1;  ///< states up to this one are proven
  std::int64_t linked_best = -1;  ///< where `best` points; -1: nowhere
};

struct Superseded {
  std::vector<std::int64_t> steps;
  bool until_proven = false;  ///< one more stays until a newer one is proven
};

/// The newest proven checkpoint stays, and so do the best one and those that the newest and the newest proven one call
/// the best: a run that goes on from either finds its best there.
/// \param older  than `newest`, by step, ascending
Superseded superseded_checkpoints(const std::vector<KnownCheckpoint>& older, const KnownCheckpoint& newest,
                                  const RetentionRules& rules);

}  // namespace fsdp
