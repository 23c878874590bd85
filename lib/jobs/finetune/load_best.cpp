#include "lib/jobs/finetune/load_best.hpp"

#include <fmt/format.h>

#include <memory>

#include "lib/base/error.hpp"
#include "lib/checkpoint/best.hpp"
#include "lib/checkpoint/find.hpp"
#include "lib/checkpoint/load.hpp"
#include "lib/checkpoint/save.hpp"
#include "lib/mpi/agree.hpp"

namespace fsdp::detail {

std::filesystem::path load_best(const RunContext& context) {
  const auto& state = context.trainer.state();
  const auto step = state.validation.best_step;
  if (step < 0) {
    throw RuntimeFailure(
        "--final best: no validation of this run had a finite loss, so there is no best checkpoint to export; the run "
        "itself is done and saved");
  }
  const auto path = context.setup.checkpoints() / checkpoint_name(step);
  if (step != state.step) {
    std::shared_ptr<const Checkpoint> checkpoint;
    run_agreed(context.world, [&] {
      if (context.world.rank() == 0 && !holds_best(context.setup.checkpoints(), step, state.validation.best_loss)) {
        throw RuntimeFailure(
            fmt::format("--final best: {} is not there, or is not the one with the best loss of this "
                        "run, {:.4f}; the run itself is done and saved",
                        path.string(), state.validation.best_loss));
      }
      checkpoint = open_checkpoint(path, /*ours_only=*/true);
    });
    load_checkpoint(context.runtime, nullptr, *checkpoint);
  }
  context.log.info(fmt::format("best      {}   loss {:.4f}: what follows has these weights", path.string(),
                               state.validation.best_loss));
  return path;
}

}  // namespace fsdp::detail
