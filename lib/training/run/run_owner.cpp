#include "lib/training/run/run_owner.hpp"

#include <fmt/format.h>

#include <thread>

#include "lib/base/error.hpp"
#include "lib/base/shared_write.hpp"
#include "lib/ranks/agree.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
constexpr auto kPoll = std::chrono::milliseconds(200);

[[noreturn]] void refuse(const fs::path& run, const std::string& holder) {
  throw Error(ExitCode::bad_input,
              fmt::format("{} belongs to a job that is running: {}; wait for it, end it, or choose another --run-name",
                          run.string(), holder));
}

/// Nothing but the claims in it.
bool holds_nothing(const fs::path& run) {
  std::error_code error;
  for (fs::directory_iterator entry(run, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename() != ".owner") return false;
  }
  return !error;
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
      throw Error(error.code(), std::string(error.what()) + " (see --out-dir)");
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

}  // namespace fsdp
