#include "lib/training/checkpoints/save.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <limits>
#include <ranges>
#include <set>
#include <span>

#include "lib/base/elapsed.hpp"
#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/usable_resources.hpp"
#include "lib/compute/tensor/scalar_type.hpp"
#include "lib/compute/tensor/without_autograd.hpp"
#include "lib/files/formats/dcp.hpp"
#include "lib/files/write/weights_alone.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/checkpoints/best.hpp"

namespace fsdp {

Superseded superseded_checkpoints(const std::vector<KnownCheckpoint>& older, const KnownCheckpoint& newest,
                                  const RetentionRules& rules) {
  Superseded result;
  std::int64_t room = std::numeric_limits<std::int64_t>::max();
  if (rules.keep_last > 0) room = rules.keep_last - (newest.passing ? 0 : 1);
  std::vector<KnownCheckpoint> kept{newest}, doomed;  // newest first
  for (auto it = older.rbegin(); it != older.rend(); ++it) {
    const bool stays = !it->passing && room > 0;
    if (stays) --room;
    (stays ? kept : doomed).push_back(*it);
  }
  const auto is_proven = [&](const KnownCheckpoint& c) { return c.step <= rules.proven_step; };
  auto proven = std::find_if(kept.begin(), kept.end(), is_proven);
  if (proven == kept.end()) {
    const auto rescued = std::find_if(doomed.begin(), doomed.end(), is_proven);
    if (rescued != doomed.end()) {
      result.until_proven = true;
      kept.push_back(*rescued);
      doomed.erase(rescued);
      proven = std::prev(kept.end());
    }
  }
  std::set<std::int64_t> bests{rules.linked_best, newest.best_step};
  if (proven != kept.end()) bests.insert(proven->best_step);
  for (const auto& checkpoint : doomed) {
    if (!bests.contains(checkpoint.step)) result.steps.push_back(checkpoint.step);
  }
  return result;
}

std::vector<std::int64_t> checkpoints_to_strip(const std::vector<KnownCheckpoint>& kept, int keep_optimizer,
                                               std::int64_t proven_step) {
  std::vector<std::int64_t> steps;
  const auto num_older = static_cast<std::ptrdiff_t>(kept.size()) - keep_optimizer;
  const auto proven =
      std::find_if(kept.rbegin(), kept.rend(), [&](const KnownCheckpoint& c) { return c.step <= proven_step; });
  if (keep_optimizer <= 0 || num_older <= 0 || proven == kept.rend()) return steps;
  for (const auto& checkpoint : std::span(kept).first(static_cast<std::size_t>(num_older)))
    if (checkpoint.step < proven->step && !checkpoint.weights_alone) steps.push_back(checkpoint.step);
  return steps;
}

namespace {

/// By their exponents, in a loop that compilers turn into vectors.
template <typename Bits>
bool all_finite(const Bits* values, std::int64_t count, Bits exponent) {
  Bits bad = 0;
  for (std::int64_t i = 0; i < count; ++i) bad |= static_cast<Bits>((values[i] & exponent) == exponent);
  return bad == 0;
}

bool all_finite(const at::Tensor& values) {
  const auto n = values.numel();
  if (!values.is_floating_point()) return true;  // codes
  if (values.scalar_type() == at::kBFloat16)
    return all_finite(static_cast<const std::uint16_t*>(values.const_data_ptr()), n, std::uint16_t{0x7f80});
  return all_finite(static_cast<const std::uint32_t*>(values.const_data_ptr()), n, std::uint32_t{0x7f800000});
}

/// \throws FormatError naming the tensor
void require_finite(const std::string& key, const at::Tensor& data) {
  if (all_finite(data)) return;
  throw FormatError(fmt::format("'{}' has values that are not finite, so this state is not saved", key));
}

at::Tensor data_of(const SnapshotBlock& block, const Snapshot& snapshot) {
  if (!block.stored) return block.data;
  return snapshot.pinned->read(*block.stored).narrow(0, block.first_row, block.sizes[0]);
}

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
    throw IoError(directory.string() + ": cannot be written: " + error.code().message() + " (see --out-dir)");
  } catch (const Error& error) {
    throw IoError(std::string(error.what()) + " (see --out-dir)");
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

void visit_states(Engine& engine, const Optimizer* optimizer, std::size_t param, const StateVisit& visit) {
  const auto& layout = engine.layout(param);
  const auto range = engine.range(param);
  visit("model." + layout.name, {"model", layout.name},
        {.key = {},
         .shape = layout.shape,
         .values = engine.stored_master_weight(param),
         .first_row = range.first_row,
         .num_rows = range.num_rows});
  if (optimizer == nullptr) return;
  for (const auto& state : optimizer->states(param)) {
    StatePath path{"optim", "state", layout.name};
    for (const auto part : state.key | std::views::split('.')) path.emplace_back(std::string(part.begin(), part.end()));
    visit(fmt::format("optim.state.{}.{}", layout.name, state.key), path, state);
  }
}

void copy_states(Snapshot& snapshot, Engine& engine, const Optimizer* optimizer, std::size_t param, const Ops* ops) {
  const auto add = [&](const std::string& key, const StatePath& path, const OptimizerState& state) {
    const auto first = state.saved_elsewhere, rows = state.num_rows - first;
    if (rows == 0) return;
    SnapshotBlock block{.key = key,
                        .path = path,
                        .global_shape = state.shape,
                        .offsets = Shape(state.shape.size(), 0),
                        .sizes = state.shape,
                        .first_row = first};
    block.offsets[0] = state.first_row + first;
    block.sizes[0] = rows;
    if (snapshot.pinned && state.values.store() != nullptr) {
      block.stored = state.values.place();
    } else {
      block.data = at::empty(block.sizes, state.values.dtype());
      const auto values = state.values.get().narrow(0, first, rows);
      ops != nullptr ? ops->transfer(block.data, values) : static_cast<void>(block.data.copy_(values));
    }
    snapshot.blocks.push_back(std::move(block));
  };
  const auto held = snapshot.pinned ? StoreHold() : engine.stored_master_weight(param).hold(Access::read);
  visit_states(engine, optimizer, param, add);
}

Snapshot copy_shards(ModelRuntime& runtime, Optimizer& optimizer) {
  Snapshot snapshot;
  if (auto* store = runtime.store()) snapshot.pinned = store->pin();
  auto& engine = runtime.engine();
  for (std::size_t i = 0; i < engine.num_parameters(); ++i) {
    // A checkpoint of adapters does not repeat their base weights.
    if (runtime.has_adapters() && !runtime.decoder().parameters[i].with_adapter()) continue;
    copy_states(snapshot, engine, &optimizer, i, &runtime.ops());
    if (runtime.world().rank() != 0) continue;
    const auto& name = engine.layout(i).name;
    const StatePath path{"optim", "state", name, "step"};
    const auto key = "optim.state." + name + ".step";
    const auto steps = optimizer.steps();
    if (optimizer.step_state(i) == StepState::tensor)
      snapshot.blocks.push_back(
          {.key = key, .path = path, .data = at::full({}, static_cast<double>(steps), at::kFloat)});
    if (optimizer.step_state(i) == StepState::number) snapshot.values.push_back({{key, path}, steps});
  }
  return snapshot;
}

void add_optimizer_values(Snapshot& snapshot, ModelRuntime& runtime, const Optimizer& optimizer, double lr,
                          bool decay_all) {
  for (int group = 0; group < 2; ++group) {
    const bool decay = group == 0;
    nlohmann::json names = nlohmann::json::array();
    const auto& table = runtime.decoder().parameters;
    for (std::size_t i = 0; i < table.size(); ++i) {
      if (!optimizer.is_frozen(i) && (table[i].decay || decay_all) == decay) names.push_back(table[i].name);
    }
    if (names.empty()) continue;
    auto fields = optimizer.group_fields();
    fields["lr"] = lr;
    fields["weight_decay"] = decay ? optimizer.options().weight_decay : 0.0;
    fields["params"] = names;
    for (const auto& [field, value] : fields.items()) {
      snapshot.values.push_back({{fmt::format("optim.param_groups.{}.{}", group, field),
                                  StatePath{"optim", "param_groups", std::int64_t{group}, field}},
                                 value});
    }
  }
}

void add_run_values(Snapshot& snapshot, const std::string& key, const StatePath& path, const nlohmann::json& value) {
  if (!value.is_object()) {
    snapshot.values.push_back({{key, path}, value});
    return;
  }
  for (const auto& [name, part] : value.items()) {
    auto place = path;
    place.emplace_back(name);
    add_run_values(snapshot, key + "." + name, place, part);
  }
}

std::string write_snapshot(const std::filesystem::path& directory, int rank, const Snapshot& snapshot) {
  nlohmann::json report;
  try {
    DcpShardWriter writer(directory, rank);
    for (const auto& [name, value] : snapshot.values) writer.add_value(name.first, name.second, value);
    for (const auto& block : snapshot.blocks) {
      const auto data = data_of(block, snapshot);
      require_finite(block.key, data);
      const ShardRecord record{
          .name = block.key,
          .dtype = to_dtype(data.scalar_type()),
          .global_shape = block.global_shape,
          .offsets = block.offsets,
          .sizes = block.sizes,
          .data = {static_cast<const std::byte*>(data.const_data_ptr()), static_cast<std::size_t>(data.nbytes())}};
      writer.add_tensor(record, block.path);
    }
    const auto items = serialize_dcp_items(writer.finish());
    report["items"] = nlohmann::json::binary({items.begin(), items.end()});
    report["size_bytes"] = writer.bytes_written();
    report["crc32"] = writer.file_crc32();
  } catch (const std::exception& error) {
    report = {{"error", error.what()}};
  }
  const auto text = nlohmann::json::to_cbor(report);
  return {text.begin(), text.end()};
}

WrittenShards read_report(const std::string& report) {
  const auto json = nlohmann::json::from_cbor(report);
  if (json.contains("error")) throw IoError(json["error"].get<std::string>());
  const auto& bytes = json["items"].get_binary();
  return {.items = deserialize_dcp_items({reinterpret_cast<const char*>(bytes.data()), bytes.size()}),
          .size_bytes = json["size_bytes"],
          .crc32 = json["crc32"]};
}

std::string checkpoint_name(std::int64_t step) { return fmt::format("step-{:08d}", step); }

std::vector<std::int64_t> checkpoint_steps(const std::filesystem::path& directory) {
  std::vector<std::int64_t> steps;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const auto name = entry.path().filename().string();
    std::int64_t step = 0;
    if (!name.starts_with("step-") || entry.is_symlink() || !entry.is_directory()) continue;
    std::from_chars(name.data() + 5, name.data() + name.size(), step);
    if (name == checkpoint_name(step)) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

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

  const bool mine = runtime_.saves_shards();
  auto* store = runtime_.store();
  const bool waits = store != nullptr && any_rank(world, mine && !store->may_go_on_while_pinned());
  auto snapshot = mine && problem.empty() ? copy_shards(runtime_, optimizer_) : Snapshot();
  if (world.rank() == 0) {
    add_optimizer_values(snapshot, runtime_, optimizer_, lr,
                         manifest.options.value("decay-all", std::string("false")) == "true");
    auto run = run_manifest_to_json(manifest);
    run["format"] = "fsdp-run";
    add_run_values(snapshot, "run", {"run"}, run);
  }
  const int rank = world.rank();
  auto write = [directory = job->temporary, rank, mine, problem, snapshot = std::move(snapshot)] {
    if (!problem.empty()) {
      const auto text = nlohmann::json::to_cbor(nlohmann::json{{"error", problem}});
      return std::string(text.begin(), text.end());
    }
    return mine ? write_snapshot(directory, rank, snapshot) : std::string();
  };
  job->writer = start_thread("writes a checkpoint", [&] { return std::async(std::launch::async, std::move(write)); });
  if (waits) {
    job->writer.wait();
    store->unpin();
    job->warning =
        "the disk of --offload-optimizer has no room for a second copy of the states: training waits while a "
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
  const auto mine = job->writer.get();
  if (auto* store = runtime_.store()) store->unpin();
  const auto parts = world.gather(mine, 0);
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
    job.manifest.files[fmt::format("__{}_0.distcp", rank)] = {shards.size_bytes, shards.crc32};
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

void point_latest_to(const std::filesystem::path& checkpoints, std::int64_t step) {
  replace_symlink(checkpoint_name(step), checkpoints / "latest");
  sync_directory(checkpoints);
}

std::string roll_back_latest(const std::filesystem::path& checkpoints, std::int64_t newest_step,
                             std::int64_t proven_step) {
  std::error_code error;
  if (newest_step <= proven_step ||
      std::filesystem::read_symlink(checkpoints / "latest", error) != checkpoint_name(newest_step))
    return "";
  const auto steps = checkpoint_steps(checkpoints);
  const auto proven = std::find_if(steps.rbegin(), steps.rend(), [&](auto step) { return step <= proven_step; });
  if (proven == steps.rend()) return "";
  point_latest_to(checkpoints, *proven);
  return (checkpoints / checkpoint_name(*proven)).string();
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
  // Later ones are what a run that went back to an earlier step has left behind: they take no place from its own.
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
