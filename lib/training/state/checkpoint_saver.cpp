#include "lib/training/state/checkpoint_saver.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "lib/base/files/file.hpp"
#include "lib/base/process/usable_resources.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/programs/dcp/dcp.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/weights_alone.hpp"
#include "lib/compute/tensor/without_autograd.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/state/best.hpp"
#include "lib/training/state/checkpoint_names.hpp"
#include "lib/training/state/snapshot.hpp"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;

/// Ends what a killed job has left half done, and sees that checkpoints can be written there. \throws IoError
void tidy_directory(const std::filesystem::path& directory) {
  try {
    std::filesystem::create_directories(directory);
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      const auto name = entry.path().filename().string();
      const bool is_link = name.starts_with(".latest.") || name.starts_with(".best.");
      if (is_link && name.ends_with(".tmp")) std::filesystem::remove(entry.path());
      if (!name.starts_with(".step-")) continue;
      const auto proper = directory / name.substr(1, std::max<std::size_t>(name.size(), 5) - 5);
      if (name.ends_with(".old") && !std::filesystem::exists(proper)) {
        std::filesystem::rename(entry.path(), proper);  // killed between the two renames of publish()
      } else {
        std::filesystem::remove_all(entry.path());
      }
    }
    replace_file(directory / ".writable", "");
    std::filesystem::remove(directory / ".writable");
  } catch (const std::filesystem::filesystem_error& error) {
    throw IoError(directory.string() + ": cannot be written: " + error.code().message(), Remedy::of_out_dir);
  } catch (const Error& error) {
    throw IoError(error.what(), Remedy::of_out_dir);
  }
}

/// Another run of these steps, or the same one before it went back, saved it to be kept.
bool is_regular(const std::filesystem::path& checkpoint) {
  try {
    return !read_run_manifest(checkpoint).passing;
  } catch (const std::exception&) {
    return false;
  }
}

/// Whether nothing lies there but what this program saved: nothing else is removed with it.
bool holds_one_checkpoint_only(const std::filesystem::path& directory) {
  try {
    const auto files = read_run_manifest(directory).files;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      const auto name = entry.path().filename().string();
      if (name != "run.json" && !files.contains(name)) return false;
    }
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

struct CheckpointSaver::Job {
  RunManifest manifest;
  std::filesystem::path temporary;
  std::filesystem::path final_path;
  std::future<std::string> writer;
  Clock::time_point started;
  double blocked_seconds = 0;
  std::string warning;
};

/// A checkpoint that loses its optimizer's state. Destroyed before its end, it stops, and the checkpoint stays whole.
struct CheckpointSaver::Rewrite {
  Rewrite(std::int64_t of_step, std::filesystem::path checkpoint) : step(of_step) {
    writer = start_thread("rewrites a checkpoint", [&] {
      return std::async(std::launch::async, [this, checkpoint = std::move(checkpoint)] {
        copy.emplace(checkpoint);
        return copy->write([this] { return stops.load(); });
      });
    });
  }
  ~Rewrite() {
    stops = true;
    if (writer.valid()) writer.wait();
  }
  bool is_written() const { return writer.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

  std::int64_t step;
  std::optional<WeightsAlone> copy;
  std::atomic<bool> stops{false};
  std::future<bool> writer;
};

CheckpointSaver::CheckpointSaver(ModelRuntime& runtime, Optimizer& optimizer, std::filesystem::path directory,
                                 int keep_last, int keep_optimizer)
    : runtime_(runtime),
      optimizer_(optimizer),
      directory_(std::move(directory)),
      keep_last_(keep_last),
      keep_optimizer_(keep_optimizer) {
  run_agreed(runtime_.world(), [&] {
    if (runtime_.world().rank() == 0) tidy_directory(directory_);
  });
}

CheckpointSaver::~CheckpointSaver() = default;

void CheckpointSaver::start(const RunManifest& manifest, double lr) {
  const WithoutAutograd guard;
  auto& world = runtime_.world();
  auto job = std::make_unique<Job>();
  job->started = Clock::now();
  job->manifest = manifest;
  job->final_path = directory_ / checkpoint_name(manifest.state.step);
  job->temporary = directory_ / ("." + checkpoint_name(manifest.state.step) + ".tmp");
  std::string problem;
  if (world.rank() == 0) {
    std::error_code error;
    std::filesystem::remove_all(job->temporary, error);
    std::filesystem::create_directories(job->temporary, error);
    if (error) problem = job->temporary.string() + ": cannot be made: " + error.message();
  }
  problem = world.broadcast_text(problem, 0);

  const bool saves = runtime_.saves_shards();
  auto* store = runtime_.store();
  const bool waits = store != nullptr && any_rank(world, saves && !store->may_go_on_while_pinned());
  auto snapshot = saves && problem.empty() ? copy_shards(runtime_, optimizer_) : Snapshot();
  if (world.rank() == 0) {
    add_optimizer_values(snapshot, runtime_, optimizer_, lr,
                         manifest.options.value("decay-all", std::string("false")) == "true");
    auto run = run_manifest_to_json(manifest);
    run["format"] = "fsdp-run";
    add_run_values(snapshot, "run", {"run"}, run);
  }
  const int rank = world.rank();
  auto write = [directory = job->temporary, rank, saves, problem, snapshot = std::move(snapshot)] {
    if (!problem.empty()) {
      const auto text = nlohmann::json::to_cbor(nlohmann::json{{"error", problem}});
      return std::string(text.begin(), text.end());
    }
    return saves ? write_snapshot(directory, rank, snapshot) : std::string();
  };
  job->writer = start_thread("writes a checkpoint", [&] { return std::async(std::launch::async, std::move(write)); });
  if (waits) {
    job->writer.wait();
    store->unpin();
    job->warning =
        "the disk of offloaded states has no room for a second copy of the states: training waits while a "
        "checkpoint is written";
  }
  job->blocked_seconds = seconds_since(job->started);
  job_ = std::move(job);
}

bool CheckpointSaver::written() const {
  return job_ == nullptr || job_->writer.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

SaveResult CheckpointSaver::finish(const std::function<void()>& appeared) {
  auto job = std::move(job_);
  const auto start = Clock::now();
  auto& world = runtime_.world();
  const auto local = job->writer.get();
  if (auto* store = runtime_.store()) store->unpin();
  const auto parts = world.gather(local, 0);
  SaveResult result;
  if (world.rank() == 0 && !job->warning.empty() && !std::exchange(told_of_waiting_, true))
    result.warning = job->warning;
  if (world.rank() == 0) {
    try {
      publish(*job, parts, result, appeared);
      result.saved = true;
    } catch (const std::exception& error) {
      result.error = error.what();
      std::error_code ignored;
      std::filesystem::remove_all(job->temporary, ignored);
    }
  }
  result.error = world.broadcast_text(result.error, 0);
  result.saved = result.error.empty();
  if (result.saved) result.path = job->final_path;
  result.seconds = seconds_since(job->started);
  result.blocked_seconds = job->blocked_seconds + seconds_since(start);
  return result;
}

void CheckpointSaver::publish(Job& job, const std::vector<std::string>& parts, SaveResult& result,
                              const std::function<void()>& appeared) {
  std::vector<DcpItem> items;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank].empty()) continue;
    const auto shards = read_report(parts[rank]);
    items.insert(items.end(), shards.items.begin(), shards.items.end());
    job.manifest.files[dcp_file_name(rank)] = {shards.size_bytes, shards.crc32};
    result.size_bytes += shards.size_bytes;
  }
  // PyTorch lists a tied tensor under each of its names; ours points the others at the same bytes. With adapters a
  // tensor may be the copy of one side alone.
  const auto count = runtime_.has_adapters() ? 0 : items.size();
  for (const auto& [name, original] : tied_names(job.manifest.config)) {
    for (std::size_t i = 0; i < count; ++i) {
      if (items[i].key != "model." + original) continue;
      auto twin = items[i];
      twin.key = "model." + name;
      twin.path = {"model", name};
      items.push_back(std::move(twin));
    }
  }
  write_dcp_metadata(job.temporary, items);
  job.manifest.files[".metadata"] = describe_file(job.temporary / ".metadata");
  if (job.manifest.passing && is_regular(job.final_path)) job.manifest.passing = false;
  write_run_manifest(job.temporary, job.manifest);
  sync_directory(job.temporary);
  std::filesystem::path old;
  if (std::filesystem::exists(job.final_path)) {
    old = directory_ / ("." + checkpoint_name(job.manifest.state.step) + ".old");
    std::filesystem::rename(job.final_path, old);
  }
  std::filesystem::rename(job.temporary, job.final_path);
  appeared();
  newest_step_ = job.manifest.state.step;
  const auto best_step = job.manifest.state.validation.best_step;
  known_[newest_step_] = {.step = newest_step_, .passing = job.manifest.passing, .best_step = best_step};
  std::error_code error;
  if (!old.empty()) std::filesystem::remove_all(old, error);
  if (error) result.warning = fmt::format("{}: cannot be removed: {}", old.string(), error.message());
}

bool CheckpointSaver::is_pending(std::int64_t step) const {
  return job_ != nullptr && job_->manifest.state.step == step;
}

bool CheckpointSaver::amend(const RunState& state) {
  const auto change = [&](RunManifest& manifest) {
    manifest.state.validation = state.validation;
    manifest.state.validation_due = state.validation_due;
    manifest.passing = false;
  };
  if (is_pending(state.step)) {
    change(job_->manifest);  // its run.json is written last
    return true;
  }
  if (runtime_.world().rank() != 0) return true;
  const auto path = directory_ / checkpoint_name(state.step);
  std::error_code error;
  if (!std::filesystem::exists(path / "run.json", error)) return false;
  auto manifest = read_run_manifest(path);
  change(manifest);
  write_run_manifest(path, manifest);
  known_.erase(state.step);
  return true;
}

void CheckpointSaver::keep_for_good(std::int64_t step) {
  if (runtime_.world().rank() != 0) return;
  keep_as_regular(directory_, step);
  known_.erase(step);
}

/// Facts about a checkpoint that decide whether it is kept.
const KnownCheckpoint& CheckpointSaver::known(std::int64_t step) {
  const auto [found, is_new] = known_.try_emplace(step, KnownCheckpoint{step});
  if (!is_new) return found->second;
  try {
    const auto manifest = read_run_manifest(directory_ / checkpoint_name(step));
    found->second.passing = manifest.passing;
    found->second.best_step = manifest.state.validation.best_step;
    found->second.weights_alone = manifest.weights_alone;
  } catch (const std::exception&) {
    // One that cannot be read stays where it is, below.
  }
  return found->second;
}

bool CheckpointSaver::prune(std::int64_t proven_step) {
  if (runtime_.world().rank() != 0) return false;
  std::vector<KnownCheckpoint> older;
  // Later ones are from before the run went back to an earlier step: they take no place from its own.
  for (const auto step : checkpoint_steps(directory_)) {
    if (step < newest_step_) older.push_back(known(step));
  }
  const auto superseded = superseded_checkpoints(
      older, known(newest_step_),
      {.keep_last = keep_last_, .proven_step = proven_step, .linked_best = best_link(directory_)});
  for (const auto step : superseded.steps) {
    const auto path = directory_ / checkpoint_name(step);
    if (!holds_one_checkpoint_only(path)) continue;
    // A kill leaves nothing half of a checkpoint under its name.
    const auto doomed = directory_ / ("." + checkpoint_name(step) + ".tmp");
    std::error_code error;
    std::filesystem::rename(path, doomed, error);
    std::filesystem::remove_all(error ? path : doomed, error);
  }
  return superseded.until_proven;
}

std::vector<std::string> CheckpointSaver::strip(std::int64_t proven_step, bool wait) {
  std::vector<std::string> problems;
  if (runtime_.world().rank() != 0 || keep_optimizer_ == 0) return problems;
  do {
    if (rewrite_ && !wait && !rewrite_->is_written()) break;
    if (rewrite_) end_rewrite(problems);
  } while (begin_rewrite(proven_step) && wait);
  return problems;
}

bool CheckpointSaver::begin_rewrite(std::int64_t proven_step) {
  std::vector<KnownCheckpoint> kept;
  for (const auto step : checkpoint_steps(directory_))
    if (step <= newest_step_) kept.push_back(known(step));
  const auto steps = checkpoints_to_strip(kept, keep_optimizer_, proven_step);
  const auto next = std::ranges::find_if(steps, [&](auto step) { return !not_rewritten_.contains(step); });
  if (next == steps.end()) return false;
  rewrite_ = std::make_unique<Rewrite>(*next, directory_ / checkpoint_name(*next));
  return true;
}

void CheckpointSaver::end_rewrite(std::vector<std::string>& problems) {
  const auto rewrite = std::move(rewrite_);
  try {
    rewrite->writer.get();
    if (!rewrite->copy->replace()) not_rewritten_.insert(rewrite->step);
    known_.erase(rewrite->step);
  } catch (const std::exception& error) {
    not_rewritten_.insert(rewrite->step);
    problems.emplace_back(error.what());
  }
}

}  // namespace fsdp
