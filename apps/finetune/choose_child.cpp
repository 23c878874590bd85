#include "apps/finetune/choose_child.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "lib/base/messages/progress.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/elapsed.hpp"

namespace fsdp::detail {
namespace {

void log_child(const RunContext& context, const ChildSummary& child, const std::string& measured) {
  const auto share = [&](std::int64_t n) {
    return 100.0 * static_cast<double>(n) / static_cast<double>(std::max<std::int64_t>(1, child.elements));
  };
  context.log.info(fmt::format(
      "child     {} of the blocks' {} elements are trained ({:.2f} %)   {}, sums from {:.3g} on",
      format_count(child.kept), format_count(child.elements), share(child.kept), measured, child.threshold));
  if (child.kept == child.wanted || context.world.rank() != 0) return;
  context.log.warning(fmt::format(
      "{} elements more than --child-tuning-p asks for ({:.2f} %) are trained: they are all equal to the least that is",
      format_count(child.kept - child.wanted), share(child.wanted)));
}

}  // namespace

bool choose_child(const RunContext& context, const std::function<bool()>& stop_wanted,
                  const std::function<void()>& after_batch, nlohmann::json& report) {
  auto& trainer = context.trainer;
  if (!trainer.optimizer().is_choosing_child()) return true;
  const auto& options = context.setup.options;
  const auto begin = std::chrono::steady_clock::now();
  const auto total = trainer.fisher_batches(), done = trainer.state().fisher_batches;
  Progress progress(context.log, context.world.rank() == 0 && !options.runtime.quiet,
                    static_cast<double>(options.log_every));
  while (trainer.state().fisher_batches < total) {
    const auto start = std::chrono::steady_clock::now();
    const auto before = trainer.state().fisher_batches;
    if (!trainer.measure_fisher(stop_wanted)) {
      progress.finish();
      return false;
    }
    const auto batch = trainer.state().fisher_batches;
    if (batch == before) continue;  // the batch is repeated with a smaller loss scale
    progress.step(batch, total, fmt::format("fisher    batch {} of {}", batch, total), seconds_since(start));
    after_batch();
  }
  progress.finish();
  const auto child = trainer.choose_child();
  log_child(context, child,
            fmt::format("{} of {} measured in {}", format_count_of(total - done, "batch", "batches"),
                        format_count_of(context.setup.batches.rows_per_step, "sample"),
                        format_duration(seconds_since(begin))));
  report["child"] = {{"elements", child.elements}, {"kept", child.kept}, {"threshold", child.threshold}};
  return true;
}

}  // namespace fsdp::detail
