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
#include "lib/engine/runtime/model_text.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/data/token_cache.hpp"
#include "lib/training/evaluate/subject.hpp"
#include "lib/training/objectives/reference.hpp"

namespace fsdp::detail {
namespace {

namespace fs = std::filesystem;

/// Adds a file, or all files of a folder: names, sizes, times, first and last bytes.
void add_weights(Fingerprint& hash, const fs::path& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) return hash.add_data_file(path);
  std::vector<fs::path> files;
  for (fs::recursive_directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->is_regular_file(error)) files.push_back(entry->path());
  }
  std::ranges::sort(files);
  for (const auto& file : files) hash.add_data_file(file);
}

/// Hash of the weights with which a run begins, without adapters.
/// \param directory   of the model; empty: it begins with random weights
/// \param checkpoint  of another objective or of another program, in place of the directory; empty: none
std::string weights_at_the_start(const RunSetup& setup, const fs::path& directory, const fs::path& checkpoint) {
  const auto& model = setup.options.model;
  Fingerprint hash;
  hash.add(model_config_to_json(setup.config).dump());
  const auto& weights = checkpoint.empty() ? directory : checkpoint;
  if (!weights.empty()) add_weights(hash, weights);
  if (weights.empty() || (checkpoint.empty() && !model.add_tokens.empty()))
    hash.add(fmt::format("{} {} {}", setup.options.seed, static_cast<int>(model.new_rows), model.pad_vocabulary));
  return fmt::format("{:016x}", hash.value());
}

/// The types by which log-probabilities differ in their digits.
std::string numbers_of(const ShardingOptions& sharding) {
  const auto name = [](const auto& type) { return type ? std::to_string(static_cast<int>(*type)) : std::string("-"); };
  return fmt::format("{} {} {} {} {} {} {}", static_cast<int>(sharding.precision), name(sharding.param_dtype),
                     name(sharding.buffer_dtype), name(sharding.compute_dtype), sharding.quantize.enabled(),
                     sharding.quantize.double_quant, sharding.tf32);
}

class ReferenceJob {
 public:
  ReferenceJob(ProcessGroup& world, RunSetup& setup, ModelRuntime& runtime, const std::optional<RestartPoint>& taken,
               const Logger& log, const std::function<bool()>& stop_wanted)
      : world_(world),
        setup_(setup),
        runtime_(runtime),
        taken_(taken),
        goes_on_(taken && taken->knows_run && taken->manifest.data.contains("reference")),
        log_(log),
        stop_wanted_(stop_wanted) {}

  void run() {
    const auto& given = options().objective.reference;
    if (given.ends_with(".npy")) {
      if (!setup_.validation.empty())
        throw UsageError(
            "--reference " + given +
            " is of the training data alone: for --val-data and --val-split give the model, which computes "
            "theirs, too");
      setup_.reference = "file";
    } else if (!given.empty()) {
      run_agreed(world_, [&] { subject_ = open_subject(given, "", options().model.tokenizer); });
      setup_.reference = text_of_root(world_, [&] {
        Fingerprint hash;
        add_weights(hash, given);
        if (!subject_->base.directory.empty()) add_weights(hash, subject_->base.directory);
        return fmt::format("{:016x}", hash.value());
      });
    } else if (goes_on_) {
      setup_.reference = taken_->manifest.data.at("reference").get<std::string>();
    } else {
      const auto checkpoint = taken_ && !runtime_.has_adapters() ? taken_->candidates.front() : fs::path();
      setup_.reference =
          text_of_root(world_, [&] { return weights_at_the_start(setup_, base_directory(), checkpoint); });
    }
    if (setup_.train_data) {
      for (std::size_t i = 0; i < setup_.train_data->sources().size(); ++i)
        fill(setup_.train_data->rows_of(i), setup_.train_data->sources()[i].path);
    }
    for (auto& set : setup_.validation) fill(set.rows, set.rows.tokens().file().string());
  }

 private:
  const TrainOptions& options() const { return setup_.options; }
  /// The model that --model names, or with which the loaded run began; empty: none.
  std::string base_directory() const {
    if (!options().model.directory.empty() || !taken_) return options().model.directory;
    return taken_->manifest.data.value("weights", std::string());
  }

  void fill(TokenLoader& rows, const std::string& path) {
    const auto digest = text_of_root(world_, [&] {
      const auto found = digest_of(rows);
      return fmt::format("{} {}", found.hash, found.largest_id);
    });
    const auto hash = digest.substr(0, digest.find(' '));
    const auto largest_id = static_cast<std::int32_t>(std::stol(digest.substr(digest.find(' '))));
    const auto& given = options().objective.reference;
    if (given.ends_with(".npy")) {
      run_agreed(world_, [&] { rows.set_reference(read_log_probs(given, rows.num_references(), hash)); });
      return;
    }
    const fs::path entry = text_of_root(world_, [&] {
      const TokenCache cache(fs::path(options().out_dir) / kTokenCacheName);
      Fingerprint key;
      key.add(setup_.reference);
      key.add(hash);
      key.add(numbers_of(options().sharding) + (rows.is_packed() ? " packed" : ""));
      return cache.entry(path, key.value(), ".reference.npy").string();
    });
    if (!is_kept(rows, entry, hash)) return rows.set_reference(compute(rows, entry, path, hash, largest_id));
    log_.info("reference " + entry.string());
    run_agreed(world_, [&] { rows.set_reference(read_log_probs(entry, rows.num_references(), hash)); });
  }

  /// True when the cache has the numbers; a damaged file counts as none. Collective.
  bool is_kept(const TokenLoader& rows, const fs::path& entry, const std::string& hash) {
    bool is_whole = false;
    if (world_.rank() == 0 && TokenCache::holds(entry)) {
      try {
        read_log_probs(entry, rows.num_references(), hash);
        is_whole = true;
      } catch (const Error& error) {
        log_.warning(std::string(error.what()) + ". They are computed again");
      }
    }
    return any_rank(world_, is_whole);
  }

  /// Computes the numbers and keeps them in the cache. Collective.
  std::vector<double> compute(const TokenLoader& rows, const fs::path& entry, const std::string& path,
                              const std::string& hash, std::int32_t largest_id) {
    auto& runtime = model();
    const auto vocabulary = runtime.decoder().config.vocab_size;
    if (largest_id >= vocabulary)
      throw RequestError(
          fmt::format("{} has id {}, and the reference's vocabulary is of {}: give a reference with the "
                      "tokenizer of the model",
                      path, largest_id, vocabulary));
    const auto start = std::chrono::steady_clock::now();
    constexpr double kSecondsBetweenLines = 10;
    Progress progress(log_, !options().runtime.quiet && world_.rank() == 0, kSecondsBetweenLines);
    const auto what = fmt::format("reference {}", fs::path(path).filename().string());
    auto log_probs = sequence_log_probs(
        runtime, rows, setup_.batches.micro_batch_size, [&](double done) { progress.show_share(what, done, ""); },
        [&] { return any_rank(world_, stop_wanted_()); });
    progress.finish();
    if (!log_probs) throw RuntimeFailure("stopped while the reference of " + path + " was being computed");
    run_agreed(world_, [&] {
      if (world_.rank() == 0) write_log_probs(entry, *log_probs, hash);
    });
    log_.info(fmt::format("reference {}   {} in {:.1f} s   {}", path,
                          format_count_of(rows.num_rows(), rows.is_packed()   ? "row"
                                                           : rows.is_judged() ? "answer"
                                                                              : "preference"),
                          seconds_since(start), entry.string()));
    return *std::move(log_probs);
  }

  /// The model that is the reference.
  ModelRuntime& model() {
    if (other_) return *other_;
    const bool has_trained_adapters = runtime_.has_adapters() && (taken_ || !options().adapter.empty());
    if (!subject_ && !goes_on_ && !has_trained_adapters) return runtime_;
    if (!subject_) {
      const auto weights = base_directory();
      // A run that goes on may have begun with another checkpoint than the first run's weights.
      const bool is_known = any_rank(world_, world_.rank() == 0 && !weights.empty() &&
                                                 weights_at_the_start(setup_, weights, {}) == setup_.reference);
      if (!is_known) {
        throw RequestError("the reference with which this run began is gone from " +
                           (fs::path(options().out_dir) / kTokenCacheName).string() +
                           ": give --reference with the weights with which the run began");
      }
      run_agreed(world_, [&] { subject_ = open_subject(weights, "", options().model.tokenizer); });
    }
    auto sharding = options().sharding;
    sharding.offload_parameters = false;
    sharding.offload_optimizer = {};
    sharding.lora = subject_->lora;
    if (subject_->quantize.enabled()) sharding.quantize = subject_->quantize;
    other_.emplace(world_, subject_->config, sharding, setup_.device, StepShape());
    log_.info("reference by " + subject_->path.string());
    load_subject(*other_, *subject_);
    return *other_;
  }

  ProcessGroup& world_;
  RunSetup& setup_;
  ModelRuntime& runtime_;
  const std::optional<RestartPoint>& taken_;
  bool goes_on_;  ///< as a run that has a reference
  const Logger& log_;
  const std::function<bool()>& stop_wanted_;
  std::optional<EvaluationSubject> subject_;  ///< of another model than the run's
  std::optional<ModelRuntime> other_;
};

}  // namespace

void prepare_reference(ProcessGroup& world, RunSetup& setup, ModelRuntime& runtime,
                       const std::optional<RestartPoint>& taken, const Logger& log,
                       const std::function<bool()>& stop_wanted) {
  if (!setup.options.objective.has_reference()) return;
  ReferenceJob(world, setup, runtime, taken, log, stop_wanted).run();
}

}  // namespace fsdp::detail
