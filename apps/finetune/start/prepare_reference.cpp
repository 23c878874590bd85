#include "apps/finetune/start/prepare_reference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/base/messages/progress.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/error.hpp"
#include "lib/encoding/fingerprint.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/data/mixture_state.hpp"
#include "lib/training/data/token_cache.hpp"
#include "lib/training/evaluate/subject.hpp"
#include "lib/training/objectives/reference.hpp"

namespace fsdp::detail {
namespace {

namespace fs = std::filesystem;

void add_folder(Fingerprint& hash, const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->is_regular_file(error)) files.push_back(entry->path());
  }
  std::ranges::sort(files);
  for (const auto& file : files) hash.add_data_file(file);
}

/// Hash of the weights that are the reference. Of a run that goes on, the one that it began with.
std::string identity_of(const RunSetup& setup, bool begins) {
  const auto& options = setup.options;
  Fingerprint hash;
  if (!options.objective.reference.empty()) {
    hash.add("given");
    add_folder(hash, options.objective.reference);
    return fmt::format("{:016x}", hash.value());
  }
  if (!begins) return setup.restart->manifest.data.value("reference", std::string());
  hash.add(fmt::format("{} {}", options.seed, setup.saved_options.dump()));
  for (const auto& folder : {options.model.directory, options.adapter, options.restart_checkpoint})
    if (!folder.empty()) add_folder(hash, folder);
  return fmt::format("{:016x}", hash.value());
}

class ReferenceJob {
 public:
  ReferenceJob(ProcessGroup& world, RunSetup& setup, ModelRuntime& runtime, bool begins, const Logger& log,
               const std::function<bool()>& stop_wanted)
      : world_(world), setup_(setup), runtime_(runtime), begins_(begins), log_(log), stop_wanted_(stop_wanted) {}

  void run() {
    setup_.reference = text_of_root(world_, [&] { return identity_of(setup_, begins_); });
    if (setup_.train_data) {
      for (std::size_t i = 0; i < setup_.train_data->sources().size(); ++i)
        fill(setup_.train_data->rows_of(i), setup_.train_data->sources()[i].path);
    }
    for (auto& set : setup_.validation) fill(set.rows, set.rows.tokens().file().string());
  }

 private:
  const TrainOptions& options() const { return setup_.options; }

  void fill(TokenLoader& rows, const std::string& path) {
    const auto& given = options().objective.reference;
    if (given.ends_with(".npy")) {
      // A file is of one set of data: that of the training.
      run_agreed(world_, [&] { rows.set_reference(read_log_probs(given, rows.num_records())); });
      return;
    }
    const fs::path entry = text_of_root(world_, [&] {
      const TokenCache cache(fs::path(options().out_dir) / kTokenCacheName);
      Fingerprint hash;
      hash.add(setup_.reference);
      hash.add(content_of(rows, rows.num_records()));
      hash.add(fmt::format("{} {}", rows.num_records(), rows.longest_sequence()));
      return cache.entry(path, hash.value(), ".reference.npy").string();
    });
    const bool is_kept = any_rank(world_, world_.rank() == 0 && TokenCache::holds(entry));
    if (!is_kept) compute(rows, entry, path);
    run_agreed(world_, [&] { rows.set_reference(read_log_probs(entry, rows.num_records())); });
    if (is_kept) log_.info("reference " + entry.string());
  }

  void compute(const TokenLoader& rows, const fs::path& entry, const std::string& path) {
    auto& runtime = model();
    const auto start = std::chrono::steady_clock::now();
    constexpr double kSecondsBetweenLines = 10;
    Progress progress(log_, !options().runtime.quiet && world_.rank() == 0, kSecondsBetweenLines);
    const auto what = fmt::format("reference {}", fs::path(path).filename().string());
    const auto log_probs = sequence_log_probs(
        runtime, rows, setup_.batches.micro_batch_size, [&](double done) { progress.show_share(what, done, ""); },
        [&] { return any_rank(world_, stop_wanted_()); });
    progress.finish();
    if (!log_probs) throw RuntimeFailure("stopped while the reference of " + path + " was being computed");
    run_agreed(world_, [&] {
      if (world_.rank() == 0) write_log_probs(entry, *log_probs);
    });
    log_.info(fmt::format("reference {}   {} in {:.1f} s   {}", path,
                          format_count_of(rows.num_records() / 2, "preference"), seconds_since(start), entry.string()));
  }

  /// The model that is the reference.
  ModelRuntime& model() {
    if (other_) return *other_;
    const auto& given = options().objective.reference;
    const bool starts_from_adapter = begins_ && !options().adapter.empty();
    if (given.empty() && begins_ && !starts_from_adapter) return runtime_;
    auto weights = given.empty() ? options().model.directory : given;
    if (weights.empty() && setup_.restart) weights = setup_.restart->manifest.data.value("weights", std::string());
    if (weights.empty()) {
      throw RequestError("the reference that this run began with is gone from " +
                         (fs::path(options().out_dir) / kTokenCacheName).string() +
                         ": give --reference with the weights with which the run began, and they are computed again");
    }
    auto subject = open_subject(weights, "", options().model.tokenizer.empty() ? "" : options().model.tokenizer);
    auto sharding = options().sharding;
    sharding.offload_parameters = false;
    sharding.offload_optimizer = {};
    sharding.lora = subject.lora;
    other_.emplace(world_, subject.config, sharding, setup_.device, StepShape());
    load_subject(*other_, subject);
    log_.info("reference by " + weights);
    return *other_;
  }

  ProcessGroup& world_;
  RunSetup& setup_;
  ModelRuntime& runtime_;
  bool begins_;
  const Logger& log_;
  const std::function<bool()>& stop_wanted_;
  std::optional<ModelRuntime> other_;
};

}  // namespace

void prepare_reference(ProcessGroup& world, RunSetup& setup, ModelRuntime& runtime,
                       const std::optional<RestartPoint>& taken, const Logger& log,
                       const std::function<bool()>& stop_wanted) {
  if (!setup.options.objective.has_reference()) return;
  ReferenceJob(world, setup, runtime, begins_a_run(setup, taken), log, stop_wanted).run();
}

}  // namespace fsdp::detail
