// Finds the changes of options that make a job fit which does not, each tried by a prediction.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "apps/memprobe/memprobe_job.hpp"
#include "lib/base/error.hpp"

namespace fsdp::detail {
namespace {

struct Change {
  std::string words;
  std::function<void(MemoryRequest&)> make;
};

/// The changes that the options leave, because they do not ask for them already; those that cost least come first.
std::vector<Change> changes_left(const MemprobeOptions& options, const MemoryBudget& budget, const MemoryRequest& asked,
                                 int accumulation_steps) {
  const auto& sharding = asked.options.sharding;
  const auto has = [](const auto& tried, auto value) { return std::ranges::find(tried, value) != tried.end(); };
  const auto levers = free_levers(options, budget);
  std::vector<Change> changes;
  if (accumulation_steps > 1 && !sharding.reduce_every_micro_batch)
    changes.push_back({"--reduce-every-micro-batch",
                       [](MemoryRequest& job) { job.options.sharding.reduce_every_micro_batch = true; }});
  if (asked.job.ranks > 1 && !has(options.shardings, Sharding::full_shard))
    changes.push_back(
        {"--sharding full-shard", [](MemoryRequest& job) { job.options.sharding.sharding = Sharding::full_shard; }});
  if (!options.search && asked.options.batch_size > 1)
    changes.push_back({"a smaller --batch-size (--search finds the largest)",
                       [](MemoryRequest& job) { job.options.batch_size = 1; }});
  if (!has(options.checkpointings, 1))
    changes.push_back(
        {"--activation-checkpointing", [](MemoryRequest& job) { job.options.sharding.checkpoint_every = 1; }});
  if (budget.gpu && sharding.checkpoint_every > 0 && !sharding.offload_activations)
    changes.push_back(
        {"--offload-activations", [](MemoryRequest& job) { job.options.sharding.offload_activations = true; }});
  for (const unsigned lever : {kEightBit, kOffload}) {
    if ((levers & lever) == 0) continue;
    const auto job = with_levers(asked.options, lever);
    changes.push_back({lever == kEightBit ? fmt::format("--optimizer {}", job.optimizer.kind)
                                          : std::string("--offload-optimizer cpu"),
                       [lever](MemoryRequest& request) { request.options = with_levers(request.options, lever); }});
  }
  return changes;
}

bool would_fit(const MemoryRequest& request, const MemoryBudget& budget) try {
  return fits_budget(predict_memory(request), budget);
} catch (const UsageError&) {
  return false;  // a job with both options would be refused
}

}  // namespace

std::string what_would_fit(const MemprobeOptions& options, const MemoryBudget& budget, const MemoryRequest& asked,
                           int accumulation_steps) {
  const auto changes = changes_left(options, budget, asked, accumulation_steps);
  std::vector<std::string> alone, all;
  auto together = asked;
  for (const auto& change : changes) {
    auto changed = asked;
    change.make(changed);
    if (would_fit(changed, budget)) alone.push_back(change.words);
    change.make(together);
    all.push_back(change.words);
  }
  std::string text = "no option by itself makes it fit";
  if (!alone.empty()) {
    text = fmt::format("it fits with {}", fmt::join(alone, ", or with "));
  } else if (changes.size() > 1) {
    text = fmt::format("it {} {} together", would_fit(together, budget) ? "fits with" : "does not even fit with",
                       fmt::join(all, ", "));
  }
  return text + "; --search ranks finds the fewest ranks that it needs";
}

}  // namespace fsdp::detail
