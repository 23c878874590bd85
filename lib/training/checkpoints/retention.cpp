#include "lib/training/checkpoints/retention.hpp"

#include <algorithm>
#include <limits>
#include <set>

namespace fsdp {

Superseded superseded_checkpoints(const std::vector<KnownCheckpoint>& older, const KnownCheckpoint& newest,
                                  const RetentionRules& rules) {
  Superseded result;
  std::int64_t room = std::numeric_limits<std::int64_t>::max();
  if (rules.keep_last > 0) room = rules.keep_last - (newest.only_as_best ? 0 : 1);
  std::vector<KnownCheckpoint> kept{newest}, doomed;  // newest first
  for (auto it = older.rbegin(); it != older.rend(); ++it) {
    const bool stays = !it->only_as_best && room > 0;
    if (stays) --room;
    (stays ? kept : doomed).push_back(*it);
  }
  const auto is_proven = [&](const KnownCheckpoint& c) { return c.step <= rules.proven_step; };
  auto proven = std::find_if(kept.begin(), kept.end(), is_proven);
  if (proven == kept.end()) {
    const auto rescued = std::find_if(doomed.begin(), doomed.end(), is_proven);
    if (rescued != doomed.end()) {
      result.until_proven = true;
      kept.push_back(*rescued);
      doomed.erase(rescued);
      proven = std::prev(kept.end());
    }
  }
  std::set<std::int64_t> bests{rules.linked_best, newest.best_step};
  if (proven != kept.end()) bests.insert(proven->best_step);
  for (const auto& checkpoint : doomed) {
    if (!bests.contains(checkpoint.step)) result.steps.push_back(checkpoint.step);
  }
  return result;
}

}  // namespace fsdp
