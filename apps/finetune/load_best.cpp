#include "apps/finetune/load_best.hpp"

#include <fmt/format.h>

#include <memory>

#include "lib/ranks/agree.hpp"
#include "lib/training/checkpoints/best.hpp"
#include "lib/training/checkpoints/find.hpp"
#include "lib/training/checkpoints/load.hpp"
#include "lib/training/checkpoints/save.hpp"

namespace fsdp::detail {

namespace {

/// Rank 0 knows. \return why there is no best to export; empty: there is one
std::string what_is_missing(const RunContext& context, const std::filesystem::path& path) {
  const auto& best = context.trainer.state().validation;
  if (best.best_step < 0) return "no validation of this run had a finite " + context.setup.deciding.metric;
  if (best.best_step == context.trainer.state().step) return "";
  if (holds_best(context.setup.checkpoints(), best)) return "";
  return fmt::format("{} is not there, or is not the one with the best {} of this run, {:.4f}", path.string(),
                     best.metric, best.best_value);
}

}  // namespace

std::optional<std::filesystem::path> load_best(const RunContext& context) {
  const auto& state = context.trainer.state();
  const auto path = context.setup.checkpoints() / checkpoint_name(state.validation.best_step);
  const auto missing = text_of_root(context.world, [&] { return what_is_missing(context, path); });
  if (!missing.empty()) {
    if (context.world.rank() == 0)
      context.log.warning("--final best: " + missing + ": what follows has the weights of the last step");
    return std::nullopt;
  }
  if (state.validation.best_step != state.step) {
    std::shared_ptr<const Checkpoint> checkpoint;
    run_agreed(context.world, [&] { checkpoint = open_checkpoint(path, /*ours_only=*/true); });
    load_checkpoint(context.runtime, nullptr, *checkpoint);
  }
  context.log.info(fmt::format("best      {}   {} {:.4f}: what follows has these weights", path.string(),
                               state.validation.metric, state.validation.best_value));
  return path;
}

}  // namespace fsdp::detail
