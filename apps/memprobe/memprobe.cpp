#include "apps/memprobe/memprobe.hpp"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/common/check_options.hpp"
#include "apps/finetune/start/plan_head.hpp"
#include "apps/memprobe/memprobe_job.hpp"
#include "apps/memprobe/run_cost.hpp"
#include "lib/base/process/usable_resources.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/checkpoints/model/unused_keys.hpp"
#include "lib/compute/tensor/host_allocator.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/engine/runtime/model_text.hpp"
#include "lib/models/config/score_head.hpp"
#include "lib/planning/memory/calibration.hpp"
#include "lib/planning/memory/device.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "lib/training/run/restart.hpp"
#include "lib/training/step/plan.hpp"

namespace fsdp {
namespace {

using detail::Answer;
using detail::Combination;

class MemprobeJob {
 public:
  MemprobeJob(ProcessGroup& world, const MemprobeOptions& options, const Logger& log)
      : world_(world), options_(options), log_(log) {}

  ExitCode run(nlohmann::json& report, std::optional<MemprobeChoice>& choice) {
    if (options_.search_model || options_.search_ranks) detail::check_search_options(options_);
    set_up();
    if (options_.search_model) return search_models(report);
    // A trial only measures memory.
    if (!options_.alone) speed_.emplace(world_, options_, budget_.gpu);
    if (options_.search_ranks) return search_ranks(report);
    for (const auto& combination : combinations()) answers_.push_back(answer(combination));
    if (options_.search) detail::sort_by_speed(answers_);
    if (world_.rank() != 0) return code();
    const auto advice = find_advice();
    const auto half = in_bf16();
    print((answers_.size() == 1 ? detail::describe_answer(answers_.front(), options_, budget_)
                                : detail::describe_table(answers_, options_, budget_)) +
          (half ? detail::describe_bf16(*half, options_, budget_) : "") +
          (advice.empty() ? "" : fmt::format("{}{}\n", answers_.size() == 1 ? "" : "\nnothing fits: ", advice)));
    write(report);
    if (!advice.empty()) report["advice"] = advice;
    if (half) report["bf16"] = detail::answer_json(*half, options_, budget_);
    choice = choose();
    if (!options_.plot_file.empty()) {
      const auto& best = answers_[best_index()];
      detail::draw_memory(
          options_.plot_file, best, budget_,
          fmt::format("{} {} x {}", architecture_name(config_), config_.num_layers, config_.embed_size));
      log_.info("picture   " + options_.plot_file);
    }
    return code();
  }

 private:
  void set_up() {
    install_host_allocator();
    const auto node = world_.split_by_node();
    set_threads(*node, log_);
    job_ranks_per_node_ = node->size();
    if (options_.known_model) {
      config_ = options_.known_model->config;
      finish_model(config_, options_.train.model);
    } else {
      config_ = plan_model(options_.train, std::nullopt);
    }
    if (config_.has_scores()) detail::check_own_head(config_, options_.train);
    if (const auto& train = options_.train; train.objective.has_scores() && !config_.has_scores()) {
      const auto& named = train.conversations.labels;
      const bool is_reward = train.objective.head == HeadKind::reward;
      add_score_head(config_, named.empty() ? unnamed_labels(is_reward ? 1 : 2) : named, -1);
    }
    lora_ = options_.train.sharding.lora;
    if (const auto& model = options_.train.model; !model.add_tokens.empty()) {
      if (options_.known_model && model.tokenizer.empty())
        throw UsageError("--add-tokens grows a tokenizer, and of " + options_.known_model->name +
                         " only the sizes are built in: give --tokenizer");
      const auto* usual = model.directory.empty() ? kBuiltInTokenizer : model.directory.c_str();
      plan_new_tokens(model, model.tokenizer.empty() ? usual : model.tokenizer, config_, lora_);
    }
    refuse_new_tokens(lora_);
    check_compute_dtype(options_.train);
    check_adapter_options(options_.train);
    check_optimizer_options(options_.train);
    if (options_.measure) check_schedule_options(options_.train);
    if (options_.gpu.empty() || options_.measure) {
      device_ = choose_device(options_.train.runtime.device, world_, *node);
    }
    if (!options_.gpu.empty() && !(options_.measure && device_.backend == nullptr)) {
      budget_.gpu = find_gpu(options_.gpu, "--gpu");
    } else if (device_.backend != nullptr) {
      budget_.gpu = gpu_of(device_.backend->info(device_.device.index()));
    }
    data_ = detail::open_token_files(options_.train, config_, budget_.gpu.has_value());
    tokens_ = detail::tokens_per_sequence(options_.train, config_, data_);
    if (!options_.memory.empty() && budget_.gpu) {
      log_.warning("--memory " + options_.memory +
                   " is passed over: it is of ranks on CPUs; --margin leaves room on a GPU");
    }
    if (!options_.gpu.empty() && !budget_.gpu) {
      log_.warning("--gpu " + options_.gpu + " is passed over: what is measured here are ranks on CPUs");
    }
    if (options_.measure && !options_.search && !options_.alone && options_.ranks != 0 &&
        options_.ranks != world_.size()) {
      throw UsageError(
          fmt::format("--measure runs on the {} ranks of this job, --ranks says {}: start {} ranks, or "
                      "simulate one of them with --alone",
                      world_.size(), options_.ranks, options_.ranks));
    }
    // A search measures in child processes; a CUDA context of this process would take memory from them.
    if (options_.measure && !options_.search && device_.backend != nullptr) {
      in_use_bytes_ = bytes_outside_allocator(*device_.backend, device_.device.index());
    }
    in_use_bytes_ = static_cast<std::int64_t>(world_.all_reduce(static_cast<double>(in_use_bytes_), Reduce::max));
    for (const auto& path : options_.calibrations) {
      if (std::filesystem::path(path).filename() == "speed.json") continue;
      const auto more = read_memory_outcomes(path);
      if (more.empty()) log_.warning("--calibration " + path + ": no run has left a memory.json there yet");
      outcomes_.insert(outcomes_.end(), more.begin(), more.end());
    }
    if (options_.rank != 0 && options_.measure && !options_.alone && !options_.search) {
      throw UsageError("--rank goes with a prediction, --alone or --search");
    }
  }

  std::vector<Combination> combinations() const {
    return detail::combinations(options_, world_.size(), job_ranks_per_node_);
  }

  MemoryRequest request(const Combination& c, std::int64_t batch_size) const {
    MemoryRequest request;
    request.config = config_;
    request.options = options_.train;
    request.options.sharding.lora = lora_;
    request.options.sharding.sharding = c.sharding;
    request.options.sharding.checkpoint_every = c.checkpoint_every;
    request.options.sharding.precision = c.precision;
    request.options.batch_size = batch_size;
    request.tokens_per_row = tokens_;
    request.job = {c.ranks, c.ranks_per_node, options_.rank};
    request.gpu = budget_.gpu;
    request.threads = at::get_num_threads();
    request.margin_bytes = budget_.margin_bytes;
    if (options_.train.pack || (data_ && data_->is_packed()))
      request.documents = documents_to_predict(request, data_ ? &*data_ : nullptr);
    if (budget_.gpu) set_overheads(c, request);
    return request;
  }

  /// Replaces the usual overheads by those of earlier runs, of the GPU on this machine, or of the options.
  void set_overheads(const Combination& c, MemoryRequest& request) const {
    const auto usual_context = usual_overheads(*budget_.gpu, 0, false).context_bytes;
    if (const auto known = calibration(c).overhead_bytes) {
      // A run records only the sum of context and NCCL, and only their sum matters here.
      request.context_bytes = c.ranks > 1 ? std::min(usual_context, *known) : *known;
      request.nccl_bytes = *known - *request.context_bytes;
    } else if (in_use_bytes_ > usual_context) {
      request.context_bytes = in_use_bytes_;  // other programs on this GPU
    }
    if (!options_.cuda_context.empty()) request.context_bytes = parse_bytes(options_.cuda_context, "--cuda-context");
    if (!options_.nccl_buffers.empty()) request.nccl_bytes = parse_bytes(options_.nccl_buffers, "--nccl-buffers");
  }

  MemoryCalibration calibration(const Combination& c) const {
    const auto group = options_.train.sharding.shard_group_size;
    const int shards = group > 0 ? group : std::min(c.ranks, c.ranks_per_node);
    const bool two_axes = is_hybrid(c.sharding) && shards > 1 && shards < c.ranks;
    return calibrate_memory(outcomes_, {budget_.gpu ? budget_.gpu->total_bytes : 0,
                                        c.ranks == 1 ? 0 : (two_axes ? 2 : 1), c.ranks > c.ranks_per_node});
  }

  /// Sets the margin that must stay free. Without --margin only a search keeps one, because it chooses the batch
  /// itself.
  void plan_margin(const Combination& c) {
    constexpr double kUnknown = 0.005;
    const auto memory = budget_.gpu ? budget_.gpu->total_bytes : budget_.host_bytes;
    const auto known = calibration(c);
    if (!options_.margin.empty()) {
      budget_.margin_bytes = parse_bytes_or_percent(options_.margin, memory, "--margin");
    } else if (options_.search) {
      const double share = known.runs > 0 ? known.margin() : kUnknown;
      budget_.margin_bytes = static_cast<std::int64_t>(share * static_cast<double>(memory));
    }
  }

  void budget_for(const Combination& c) {
    if (!budget_.gpu) {
      budget_.host_bytes = options_.memory.empty() ? machine_memory_bytes() / c.ranks_per_node
                                                   : parse_bytes(options_.memory, "--memory");
    }
    plan_margin(c);
  }

  Answer answer(const Combination& c) {
    budget_for(c);
    Answer answer;
    answer.combination = c;
    answer.alone = options_.alone;
    answer.batch_size = options_.train.batch_size;
    const auto predict = [&](std::int64_t batch) { return predict_memory(request(c, batch)); };
    if (options_.search) {
      auto batches =
          detail::allowed_batches(options_.train, c.ranks, options_.max_batch == 0 ? 65536 : options_.max_batch);
      const auto passes = [&](std::int64_t batch) { return detail::fits_budget(predict(batch), budget_); };
      // A rank's whole share needs no accumulation, whose gradients take memory: it may fit where smaller batches do
      // not.
      const bool share_fits = options_.train.total_batch_size > 0 && !batches.empty() && passes(batches.back());
      if (share_fits) std::erase_if(batches, [&](std::int64_t batch) { return !passes(batch); });
      const auto guess =
          detail::guess_largest(batches, [&](std::int64_t batch) { return detail::headroom(predict(batch), budget_); });
      answer.largest = share_fits ? batches.back() : detail::largest_that_fits(batches, guess, passes);
      if (options_.measure) search_by_measuring(answer, batches);
      answer.batch_size = std::max<std::int64_t>(1, answer.measured_largest.value_or(*answer.largest));
      if (speed_ && !options_.plan_for_largest && !options_.measure && *answer.largest > 0) {
        answer.batch_size = detail::fastest_batch(batches, *answer.largest, [&](std::int64_t batch) {
          const auto speed = speed_->of(predict(batch), c);
          return speed ? speed->tokens_per_second : 0.0;
        });
      }
    }
    answer.prediction = predict(answer.batch_size);
    if (speed_) answer.speed = speed_->of(answer.prediction, c);
    answer.fits =
        answer.measured_largest ? *answer.measured_largest > 0 : detail::fits_budget(answer.prediction, budget_);
    if (options_.measure && !options_.search) measure(answer);
    return answer;
  }

  ExitCode search_models(nlohmann::json& report) {
    std::vector<detail::ModelAnswer> answers;
    for (const auto& c : combinations()) {
      budget_for(c);
      answers.push_back(detail::search_model(c, config_, budget_, [&](const ModelConfig& config) {
        auto asked = request(c, options_.train.batch_size);
        asked.config = config;
        return predict_memory(asked);
      }));
    }
    report = detail::models_json(answers, budget_);
    report["batch_size_per_device"] = options_.train.batch_size;
    config_ = detail::with_layers(config_, std::max<std::int64_t>(1, report["largest_layers"]));
    report["model"] = model_json();
    if (world_.rank() == 0) print(detail::describe_models(answers, budget_));
    return report["largest_layers"] > 0 ? ExitCode::ok : ExitCode::answer_no;
  }

  ExitCode search_ranks(nlohmann::json& report) {
    constexpr int kMostRanks = 4096, kUsualGpusOfNode = 8;
    const int most = options_.ranks > 0 ? options_.ranks : kMostRanks;
    int per_node = options_.ranks_per_node;
    if (per_node == 0) per_node = budget_.gpu ? kUsualGpusOfNode : job_ranks_per_node_;
    const auto counts = detail::rank_counts(options_.train, per_node, most);
    std::vector<Combination> starts;
    for (const auto sharding : options_.shardings) {
      for (const auto precision : options_.precisions)
        starts.push_back({sharding, options_.checkpointings.front(), precision, 1, per_node});
    }
    const auto predict = [&](const Combination& c, unsigned levers) {
      budget_for(c);
      auto asked = request(c, options_.train.batch_size);
      const auto job = detail::with_levers(options_.train, levers);
      check_optimizer_options(job);
      asked.options.optimizer = job.optimizer;
      asked.options.sharding.offload_optimizer = job.sharding.offload_optimizer;
      return predict_memory(asked);
    };
    auto answers = detail::search_ranks(starts, detail::free_levers(options_, budget_), counts, predict,
                                        [&](const MemoryPrediction& p) { return detail::fits_budget(p, budget_); });
    for (auto& answer : answers) {
      if (speed_) answer.speed = speed_->of(answer.prediction, answer.combination);
    }
    report = detail::ranks_json(answers, options_, budget_);
    report["batch_size_per_device"] = options_.train.batch_size;
    report["model"] = model_json();
    if (world_.rank() == 0) {
      print(detail::describe_ranks(answers, options_, budget_) +
            fmt::format("{} per rank, {} on a node, up to {} tried. Left out: what does not fit, and changes that save "
                        "no rank\n",
                        format_count_of(options_.train.batch_size, "sequence"), format_count_of(per_node, "rank"),
                        format_count_of(counts.empty() ? 0 : counts.back(), "rank")));
    }
    return answers.empty() ? ExitCode::answer_no : ExitCode::ok;
  }

  void measure(Answer& answer) {
    const auto ask = request(answer.combination, answer.batch_size);
    if (!options_.alone) {
      answer.measured = measure_memory(world_, ask, device_);
      return;
    }
    const auto& sharding = ask.options.sharding;
    const auto lone = make_lone_rank(ask.job, [&](ProcessGroup& group) { make_mesh(group, sharding); });
    auto device = device_;
    std::shared_ptr<void> absent;  // holds the memory that NCCL and the margin would take
    if (device.backend != nullptr) {
      const auto bytes = answer.prediction.overheads.nccl_bytes + budget_.margin_bytes;
      if (bytes > 0) absent = device.backend->hold_memory(device.device.index(), bytes);
      device.backend = make_lone_backend(device.backend);
    }
    answer.measured = measure_memory(*lone, ask, device);
  }

  /// Searches around the predicted batch. Rank 0 measures each batch in a child process while the other ranks wait.
  void search_by_measuring(Answer& answer, const std::vector<std::int64_t>& batches) {
    double largest = 0;
    if (world_.rank() == 0) {
      const auto& c = answer.combination;
      const auto passes = [&](std::int64_t batch) {
        // Tells the other ranks that the search is still running, and checks that they are still there.
        const auto pulse = [&] { world_.all_reduce(1.0, Reduce::max); };
        const auto measured = detail::measure_in_child(options_, c, batch, budget_.margin_bytes, pulse);
        if (!measured) return false;
        const bool fits =
            budget_.gpu ? measured->alloc_retries == 0 && measured->ooms == 0
                        : measured->peak_bytes + answer_overhead(c, batch) + budget_.margin_bytes <= budget_.host_bytes;
        if (fits) answer.measured = measured;
        return fits;
      };
      largest = static_cast<double>(detail::largest_that_fits(batches, *answer.largest, passes));
    }
    while (world_.all_reduce(0.0, Reduce::max) > 0 && world_.rank() != 0) {
    }
    largest = world_.all_reduce(largest, Reduce::max);
    answer.measured_largest = static_cast<std::int64_t>(largest);
  }

  /// Returns the bytes that a rank on CPUs needs beside its tensors.
  std::int64_t answer_overhead(const Combination& c, std::int64_t batch) const {
    const auto host = predict_memory(request(c, batch)).host;
    return host.peak_bytes() - host.states_bytes;
  }

  /// Says what would make the smallest of the answers fit; empty when one fits, by prediction or measurement.
  std::string find_advice() {
    if (options_.alone || code() == ExitCode::ok) return "";
    const auto& least =
        *std::ranges::min_element(answers_, {}, [](const Answer& a) { return detail::needed_bytes(a.prediction); });
    const auto before = budget_;
    budget_for(least.combination);
    std::string text;
    if (!detail::fits_budget(least.prediction, budget_))
      text = detail::what_would_fit(options_, budget_, request(least.combination, least.batch_size),
                                    least.prediction.accumulation_steps);
    budget_ = before;
    return text;
  }

  /// The best answer in bf16, where no option chose float32, in which a GPU is many times slower.
  std::optional<Answer> in_bf16() {
    constexpr int kFirstWithBf16 = 80;  // compute capability
    if (!options_.precision_is_open || options_.measure || !budget_.gpu ||
        budget_.gpu->compute_capability < kFirstWithBf16)
      return std::nullopt;
    auto combination = answers_[best_index()].combination;
    combination.precision = c10::ScalarType::BFloat16;
    const auto before = budget_;
    auto found = answer(combination);
    budget_ = before;
    return found;
  }

  std::size_t best_index() const { return detail::best_answer(answers_, options_.plan_for_largest); }

  std::string cost_of_run(const Answer& answer) const {
    const auto cost = detail::run_cost(answer.combination, answer.speed, options_, budget_);
    return cost ? "; the run takes " + detail::describe_cost(*cost, options_) : "";
  }

  std::optional<MemprobeChoice> choose() const {
    const auto& best = answers_[best_index()];
    if (!best.fits || best.largest == 0) return std::nullopt;
    const auto& c = best.combination;
    return MemprobeChoice{
        c.sharding,
        c.checkpoint_every,
        c.precision,
        best.batch_size,
        c.ranks,
        c.ranks_per_node,
        best.prediction.host.peak_bytes(),
        budget_.gpu ? budget_.gpu->name : std::string(),
        fmt::format("{} of {} per rank{}", format_bytes(static_cast<double>(detail::needed_bytes(best.prediction))),
                    format_bytes(static_cast<double>(budget_.gpu ? budget_.gpu->total_bytes : budget_.host_bytes)),
                    best.speed ? "; predicted " + detail::describe_speed(*best.speed) : "") +
            cost_of_run(best)};
  }

  void print(const std::string& text) const {
    auto head = fmt::format(
        "model     {} {} x {}, {:.1f} M parameters   {} tokens per {}   {}", architecture_name(config_),
        config_.num_layers, config_.embed_size, static_cast<double>(num_parameters(parameter_table(config_))) / 1e6,
        tokens_, options_.train.pack ? "row of packed texts" : "sequence",
        budget_.gpu
            ? fmt::format("{}: {}", budget_.gpu->name, format_bytes(static_cast<double>(budget_.gpu->total_bytes)))
            : fmt::format("CPUs: {} per rank", format_bytes(static_cast<double>(budget_.host_bytes))));
    if (options_.known_model) head += fmt::format("\nmodel     sizes of {} are built in", options_.known_model->name);
    if (speed_) head += "\nspeed     by " + speed_->source();
    if (!options_.calibrations.empty() && !answers_.empty()) head += "\n" + describe_calibration();
    if (options_.train.runtime.json) {
      log_.info(head);
      log_.info(text);
    } else {
      std::cout << head << "\n\n" << text << std::flush;
      if (!std::cout) throw IoError("stdout: cannot write the report");
    }
  }

  std::string describe_calibration() const {
    const auto known = calibration(answers_[best_index()].combination);
    std::string text = "earlier   ";
    if (known.runs > 0) {
      text += fmt::format("{} run{}: predictions were {:+.2f} to {:+.2f} % off", known.runs, known.runs == 1 ? "" : "s",
                          100 * known.lowest_error, 100 * known.highest_error);
    } else {
      text +=
          fmt::format("no run on {} without alloc retries among {}", budget_.gpu ? "a GPU" : "CPUs", outcomes_.size());
    }
    if (known.overhead_bytes) {
      text += fmt::format("   {} outside the allocator on such a GPU",
                          format_bytes(static_cast<double>(*known.overhead_bytes)));
    }
    return text;
  }

  nlohmann::json model_json() const {
    nlohmann::json model{{"architecture", std::string(architecture_name(config_))},
                         {"parameters", num_parameters(parameter_table(config_))},
                         {"tokens_per_sequence", tokens_}};
    if (options_.known_model) model["built_in"] = options_.known_model->name;
    return model;
  }

  void write(nlohmann::json& report) const {
    report = detail::answer_json(answers_[best_index()], options_, budget_);
    report["model"] = model_json();
    if (!options_.calibrations.empty()) {
      const auto known = calibration(answers_[best_index()].combination);
      report["calibration"] = {{"runs", known.runs}};
      if (known.runs > 0) {
        report["calibration"]["lowest_error"] = known.lowest_error;
        report["calibration"]["highest_error"] = known.highest_error;
      }
      if (known.overhead_bytes) report["calibration"]["overhead_bytes"] = *known.overhead_bytes;
    }
    if (speed_) report["rates"] = speed_->json();
    report["combinations"] = nlohmann::json::array();
    for (const auto& answer : answers_)
      report["combinations"].push_back(detail::answer_json(answer, options_, budget_));
  }

  ExitCode code() const {
    const bool any = std::any_of(answers_.begin(), answers_.end(), [](const Answer& a) { return a.fits; });
    return any ? ExitCode::ok : ExitCode::answer_no;
  }

  ProcessGroup& world_;
  const MemprobeOptions& options_;
  const Logger& log_;
  ModelConfig config_;
  LoraConfig lora_;
  std::int64_t tokens_ = 0;
  std::optional<TrainingData> data_;  ///< set when --train-data names token files
  int job_ranks_per_node_ = 1;
  DeviceChoice device_;
  detail::MemoryBudget budget_;
  std::vector<MemoryOutcome> outcomes_;  ///< from --calibration
  std::int64_t in_use_bytes_ = 0;        ///< on the GPU that is measured
  std::optional<detail::SpeedModel> speed_;
  std::vector<Answer> answers_;
};

}  // namespace

ExitCode run_memprobe(ProcessGroup& world, const MemprobeOptions& options, const Logger& log, nlohmann::json& report,
                      std::optional<MemprobeChoice>& choice) {
  const auto code = MemprobeJob(world, options, log).run(report, choice);
  if (const auto& model = options.train.model.directory; world.rank() == 0 && !model.empty() && !options.alone) {
    const auto ignored = ignored_in_config(model);
    report["ignored"] = ignored.to_json();
    log_ignored(ignored, log);
  }
  return code;
}

}  // namespace fsdp
