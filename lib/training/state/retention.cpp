#include "lib/training/state/retention.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <span>

namespace fsdp {

Superseded superseded_checkpoints(const std::vector<KnownCheckpoint>& older, const KnownCheckpoint& newest,
                                  const RetentionRules& rules) {
  Superseded result;
  std::int64_t room = std::numeric_limits<std::int64_t>::max();
  if (rules.keep_last > 0) room = rules.keep_last - (newest.passing ? 0 : 1);
  std::vector<KnownCheckpoint> kept{newest}, doomed;  // newest first
  for (auto it = older.rbegin(); it != older.rend(); ++it) {
    const bool stays = !it->passing && room > 0;
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

std::vector<std::int64_t> checkpoints_to_strip(const std::vector<KnownCheckpoint>& kept, int keep_optimizer,
                                               std::int64_t proven_step) {
  std::vector<std::int64_t> steps;
  const auto num_older = static_cast<std::ptrdiff_t>(kept.size()) - keep_optimizer;
  const auto proven =
      std::find_if(kept.rbegin(), kept.rend(), [&](const KnownCheckpoint& c) { return c.step <= proven_step; });
  if (keep_optimizer <= 0 || num_older <= 0 || proven == kept.rend()) return steps;
  for (const auto& checkpoint : std::span(kept).first(static_cast<std::size_t>(num_older)))
    if (checkpoint.step < proven->step && !checkpoint.weights_alone) steps.push_back(checkpoint.step);
  return steps;
}

}  // namespace fsdp
