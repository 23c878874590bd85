// Finds the changes of options that make a job fit which does not, each tried by a prediction.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/check_options.hpp"
#include "apps/memprobe/memprobe_job.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"

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

/// The prediction with these changes, if the job fits then.
std::optional<MemoryPrediction> fitting(MemoryRequest request, const std::vector<const Change*>& changes,
                                        const MemoryBudget& budget) try {
  for (const auto* change : changes) change->make(request);
  check_optimizer_options(request.options);
  auto prediction = predict_memory(request);
  return fits_budget(prediction, budget) ? std::optional(std::move(prediction)) : std::nullopt;
} catch (const Error& refusal) {
  if (refusal.code() != ExitCode::usage) throw;
  return std::nullopt;  // a job with these options would be refused
}

/// Calls use() with each set of `size` of the changes, in their order.
void for_sets(const std::vector<Change>& changes, std::size_t size, std::size_t first, std::vector<const Change*>& set,
              const std::function<void(const std::vector<const Change*>&)>& use) {
  if (set.size() == size) return use(set);
  for (std::size_t i = first; i < changes.size(); ++i) {
    set.push_back(&changes[i]);
    for_sets(changes, size, i + 1, set, use);
    set.pop_back();
  }
}

/// The changes in words, with the host memory of a node if that grows.
std::string words_of(const std::vector<const Change*>& set, const MemoryPrediction& prediction,
                     const MemoryRequest& asked, const MemoryBudget& budget) {
  std::vector<std::string> words;
  for (const auto* change : set) words.push_back(change->words);
  auto text = fmt::format("{}", fmt::join(words, " and "));
  const auto node = prediction.host.peak_bytes() * std::min(asked.job.ranks, asked.job.ranks_per_node);
  if (budget.gpu && prediction.host.states_bytes > 0)
    text += fmt::format(" ({} of host memory a node)", format_bytes(static_cast<double>(node)));
  return text;
}

}  // namespace

std::string what_would_fit(const MemprobeOptions& options, const MemoryBudget& budget, const MemoryRequest& asked,
                           int accumulation_steps) {
  const auto changes = changes_left(options, budget, asked, accumulation_steps);
  std::vector<std::string> sets;
  for (std::size_t size = 1; size <= changes.size() && sets.empty(); ++size) {
    std::vector<const Change*> set;
    for_sets(changes, size, 0, set, [&](const auto& tried) {
      if (const auto found = fitting(asked, tried, budget)) sets.push_back(words_of(tried, *found, asked, budget));
    });
  }
  std::string text = "no option makes it fit";
  if (changes.size() > 1) {
    std::vector<std::string> all;
    for (const auto& change : changes) all.push_back(change.words);
    text = fmt::format("it does not even fit with {} together", fmt::join(all, ", "));
  }
  if (!sets.empty()) text = fmt::format("it fits with {}", fmt::join(sets, ", or with "));
  return text + "; --search ranks finds the fewest ranks that it needs";
}

}  // namespace fsdp::detail
