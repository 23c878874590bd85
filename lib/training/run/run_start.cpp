#include "lib/training/run/run_start.hpp"

#include <fmt/format.h>

#include <thread>

#include "lib/base/files/shared_write.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/state/checkpoint.hpp"
#include "lib/training/step/plan.hpp"

namespace fsdp {
namespace {
namespace fs = std::filesystem;
constexpr auto kPoll = std::chrono::milliseconds(200);

[[noreturn]] void refuse(const fs::path& run, const std::string& holder) {
  throw Error(ExitCode::bad_input,
              fmt::format("{} belongs to a job that is running: {}; wait for it or end it", run.string(), holder),
              Remedy::another_run_name);
}

/// Nothing but the claims in it.
bool holds_nothing(const fs::path& run) {
  std::error_code error;
  for (fs::directory_iterator entry(run, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename() != ".owner") return false;
  }
  return !error;
}

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

void RunOwner::claim(const Options& options, const Logger& log) {
  std::error_code error;
  made_run_ = !fs::exists(options.run, error);
  make_directories(options.run);
  const auto directory = options.run / ".owner";
  ClaimWatch watch(directory, options.takeover_after);
  bool told = false;
  for (;;) {
    if (const auto generation = watch.try_take()) {
      claim_ = std::make_shared<Claim>(directory, *generation);
      break;
    }
    if (watch.owner_lives()) refuse(options.run, watch.holder());
    if (!told && !watch.holder().empty()) {
      log.info(fmt::format("waiting   {} is claimed by {}: listening for its heartbeat, for {} s at the most",
                           options.run.string(), watch.holder(),
                           std::chrono::duration_cast<std::chrono::seconds>(options.takeover_after).count()));
      told = true;
    }
    if (options.stop && options.stop()) {
      throw Error(ExitCode::stopped_early,
                  fmt::format("asked to stop while {} was still claimed by {}", options.run.string(), watch.holder()));
    }
    std::this_thread::sleep_for(std::min(kPoll, options.takeover_after / 4));
  }
  heartbeat_ = std::make_unique<Heartbeat>(options.takeover_after / 6);
  heartbeat_->add(claim_);
  looked_at_ = std::chrono::steady_clock::now();
}

std::unique_ptr<RunOwner> RunOwner::take(ProcessGroup& world, const Options& options, const Logger& log) {
  std::unique_ptr<RunOwner> owner(new RunOwner);
  owner->run_ = options.run;
  run_agreed(world, [&] {
    if (world.rank() != 0) return;
    try {
      owner->claim(options, log);
    } catch (const IoError& error) {
      throw Error(error.code(), error.what(), Remedy::of_out_dir);
    }
  });
  return owner;
}

RunOwner::~RunOwner() {
  heartbeat_.reset();
  if (claim_ == nullptr || claim_->lost()) return;
  std::error_code ignored;
  if (made_run_ && holds_nothing(run_)) {
    // A start that came to nothing leaves nothing.
    claim_->end();
    fs::remove(run_, ignored);
    return;
  }
  claim_.reset();  // says that it is released
}

void RunOwner::check(bool now) {
  if (claim_ == nullptr) return;
  const auto time = std::chrono::steady_clock::now();
  if (!now && time - looked_at_ < std::chrono::seconds(1)) return;
  looked_at_ = time;
  claim_->beat();
  if (!claim_->lost()) return;
  if (std::error_code error; !fs::exists(run_ / ".owner", error)) {
    throw RuntimeFailure(run_.string() +
                         ": the run's folder is gone (removed, or renamed?): nothing more can be saved "
                         "there. Its last checkpoint, wherever it is now, can be restarted from");
  }
  throw Error(
      ExitCode::bad_input,
      fmt::format("{} was taken over by another job while this one was silent (suspended?): {}; nothing more is "
                  "written here",
                  run_.string(), owner_words(run_ / ".owner", claim_->generation() + 1)));
}

RunStart::RunStart(ProcessGroup& world, const TrainOptions& options, const Logger& log)
    : clock(options.time_limit_seconds),
      owner(take_run(world, options, clock, log)),
      restart(find_restart(world, options, run_directory(options) / "checkpoints", log)) {
  if (!clock.warning().empty() && world.rank() == 0) log.warning(clock.warning());
}

}  // namespace fsdp
