#include "lib/training/run/run_start.hpp"

#include "lib/ranks/agree.hpp"
#include "lib/training/checkpoints/find.hpp"
#include "lib/training/step/plan.hpp"

namespace fsdp {
namespace {

std::unique_ptr<RunOwner> take_run(ProcessGroup& world, const TrainOptions& options, const detail::RunClock& clock,
                                   const Logger& log) {
  if (!trains(options) || options.dry_run) return nullptr;
  // A path that leads nowhere is told before the folder is claimed; a job that is about to end may still make a latest.
  run_agreed(world, [&] {
    const auto& restart = options.restart_checkpoint;
    if (world.rank() == 0 && !restart.empty() && !names_latest(restart))
      checkpoint_candidates(restart, run_directory(options) / "checkpoints");
  });
  const auto takeover = std::chrono::duration<double>(options.takeover_after_seconds);
  return RunOwner::take(world,
                        {run_directory(options), std::chrono::duration_cast<std::chrono::milliseconds>(takeover),
                         [&clock] { return clock.signalled(); }},
                        log);
}

}  // namespace

RunStart::RunStart(ProcessGroup& world, const TrainOptions& options, const Logger& log)
    : clock(options.time_limit_seconds),
      owner(take_run(world, options, clock, log)),
      restart(find_restart(world, options, run_directory(options) / "checkpoints", log)) {
  if (!clock.warning().empty() && world.rank() == 0) log.warning(clock.warning());
}

}  // namespace fsdp
