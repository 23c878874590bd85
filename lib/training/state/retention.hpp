#pragma once
// Which of a run's checkpoints are no longer to be kept, whole or in part.
#include <cstdint>
#include <vector>

namespace fsdp {

struct KnownCheckpoint {
  std::int64_t step = 0;
  bool passing = false;         ///< RunManifest::passing
  std::int64_t best_step = -1;  ///< of the checkpoint that was the best when it was saved; -1: none was
  bool weights_alone = false;   ///< RunManifest::weights_alone
};

struct RetentionRules {
  int keep_last = 0;              ///< of those that are not passing; 0: all
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

/// Checkpoints that are to keep their weights alone: those before the newest proven one, to which a run may go back,
/// and beyond the `keep_optimizer` newest. \param kept  by step, ascending
std::vector<std::int64_t> checkpoints_to_strip(const std::vector<KnownCheckpoint>& kept, int keep_optimizer,
                                               std::int64_t proven_step);

}  // namespace fsdp
