#include "apps/convert/prune_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "apps/common/remedies.hpp"
#include "lib/base/files/claim.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/weights_alone.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

/// A run's folder, held against jobs that would write there.
class HeldRun {
 public:
  HeldRun(const fs::path& run, const std::function<bool()>& stop, const Logger& log) {
    constexpr auto takeover_after = std::chrono::seconds(90), poll = std::chrono::seconds(1);
    const auto directory = run / ".owner";
    ClaimWatch watch(directory, takeover_after);
    for (bool told = false;; told = true) {
      if (const auto generation = watch.try_take()) {
        claim_ = std::make_shared<Claim>(directory, *generation);
        break;
      }
      if (watch.owner_lives())
        throw Error(ExitCode::bad_input,
                    fmt::format("{} belongs to a job that is running: {}; it keeps less itself with --keep-optimizer",
                                run.string(), watch.holder()));
      if (!told)
        log.info(fmt::format("{} is claimed by {}: listening for its heartbeat, for {} s at the most", run.string(),
                             watch.holder(), takeover_after.count()));
      if (stop && stop()) throw Stopped();
      std::this_thread::sleep_for(poll);
    }
    heartbeat_.emplace(takeover_after / 6);
    heartbeat_->add(claim_);
  }

 private:
  std::shared_ptr<Claim> claim_;
  std::optional<Heartbeat> heartbeat_;
};

/// The folder of the checkpoints. \throws MissingInput
fs::path checkpoints_of(const fs::path& path) {
  std::error_code error;
  for (const auto& folder : {path / "checkpoints", path})
    if (fs::is_directory(folder, error) && !saved_steps(folder).empty()) return folder;
  throw MissingInput(path.string() +
                     ": is no run of fsdp-finetune: neither it nor checkpoints/ in it has a folder step-NNNNNNNN with "
                     "run.json");
}

/// Ends what a killed job has left half done, as CheckpointSaver does.
void tidy(const fs::path& checkpoints) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(checkpoints)) found.push_back(entry.path());
  std::error_code ignored;
  for (const auto& path : found) {
    const auto name = path.filename().string();
    if (!name.starts_with(".step-")) continue;
    constexpr std::string_view old = ".old";
    const auto proper = checkpoints / name.substr(1, name.size() - 1 - old.size());
    if (name.ends_with(old) && !fs::exists(proper, ignored)) fs::rename(path, proper, ignored);
    if (name.ends_with(".weights.tmp")) fs::remove_all(path, ignored);
  }
}

std::string name_of(std::int64_t step) { return fmt::format("step-{:08d}", step); }

/// The checkpoints that are to keep their weights alone.
std::vector<fs::path> older_ones(const fs::path& checkpoints, int keep_optimizer) {
  const auto steps = saved_steps(checkpoints);
  const auto num_older = std::max<std::ptrdiff_t>(0, std::ssize(steps) - keep_optimizer);
  std::error_code error;
  const auto latest = fs::read_symlink(checkpoints / "latest", error).filename().string();
  std::vector<fs::path> paths;
  for (const auto step : std::span(steps).first(num_older))
    if (name_of(step) != latest) paths.push_back(checkpoints / name_of(step));
  return paths;
}

}  // namespace

nlohmann::json prune_run(const fs::path& path, const PruneOptions& options, const Logger& log) {
  if (options.keep_optimizer < 1)
    throw UsageError("--keep-optimizer: must be 1 or more, so that the run can be resumed");
  const auto checkpoints = checkpoints_of(path);
  std::optional<HeldRun> held;
  if (!options.dry_run) {
    const bool is_inside = fs::weakly_canonical(checkpoints).filename() == "checkpoints";
    held.emplace(is_inside ? fs::weakly_canonical(checkpoints).parent_path() : checkpoints, options.stop, log);
    tidy(checkpoints);
  }
  nlohmann::json report{{"checkpoints", nlohmann::json::array()}, {"failed", nlohmann::json::array()}};
  std::uint64_t freed = 0;
  for (const auto& checkpoint : older_ones(checkpoints, options.keep_optimizer)) {
    try {
      WeightsAlone copy(checkpoint);
      if (copy.is_done()) continue;
      if (!options.dry_run && !copy.write(options.stop)) throw Stopped();
      if (!options.dry_run) copy.replace();
      freed += copy.freed_bytes();
      report["checkpoints"].push_back({{"path", checkpoint.string()}, {"freed_bytes", copy.freed_bytes()}});
      log.info(fmt::format("{} {} its weights alone: {} freed", checkpoint.string(),
                           options.dry_run ? "would keep" : "keeps",
                           format_bytes(static_cast<double>(copy.freed_bytes()))));
    } catch (const FormatError& error) {
      report["failed"].push_back(told(error));
      log.warning(error.what(), error.advice());
    }
  }
  report["freed_bytes"] = freed;
  if (report["checkpoints"].empty() && report["failed"].empty())
    log.info(checkpoints.string() + ": no older checkpoint has an optimizer's state");
  return report;
}

}  // namespace fsdp
