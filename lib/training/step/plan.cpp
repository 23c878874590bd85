#include "lib/training/step/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <string_view>
#include <tuple>

#include "lib/base/error.hpp"
#include "lib/base/text_format.hpp"
#include "lib/compute/ops/fp8.hpp"
#include "lib/training/data/token_cache.hpp"

namespace fsdp {

bool trains(const TrainOptions& options) { return options.max_epochs >= 0 || options.max_steps > 0; }

BatchPlan plan_batches(const TrainOptions& options, int ranks) {
  BatchPlan plan;
  plan.micro_batch_size = options.batch_size;
  const auto per_round = options.batch_size * ranks;
  if (options.total_batch_size == 0) {
    plan.accumulation_steps = std::max(1, options.gradient_accumulation_steps);
    plan.rows_per_step = per_round * plan.accumulation_steps;
    return plan;
  }
  plan.rows_per_step = options.total_batch_size;
  if (options.total_batch_restored && options.total_batch_size % per_round != 0) {
    // Another number of ranks than before keeps the optimization: the step's rows are dealt out as evenly as they go.
    plan.accumulation_steps = static_cast<int>((options.total_batch_size + per_round - 1) / per_round);
    const auto parts = static_cast<std::int64_t>(plan.accumulation_steps) * ranks;
    plan.micro_batch_size = (options.total_batch_size + parts - 1) / parts;
    return plan;
  }
  if (options.total_batch_size % per_round != 0) {
    const auto below = options.total_batch_size / per_round * per_round;
    throw UsageError(fmt::format(
        "--total-batch-size {} is not a multiple of --batch-size {} x {} = {}; use {}{} or another --batch-size",
        options.total_batch_size, options.batch_size, format_count_of(ranks, "rank"), per_round,
        below > 0 ? fmt::format("{} or ", below) : std::string(), below + per_round));
  }
  plan.accumulation_steps = static_cast<int>(options.total_batch_size / per_round);
  if (options.gradient_accumulation_steps != 0 && options.gradient_accumulation_steps != plan.accumulation_steps) {
    throw UsageError(fmt::format("--gradient-accumulation-steps {} contradicts --total-batch-size {}, which needs {}",
                                 options.gradient_accumulation_steps, options.total_batch_size,
                                 plan.accumulation_steps));
  }
  return plan;
}

std::int64_t plan_steps(const TrainOptions& options, std::int64_t num_rows, std::int64_t rows_per_step) {
  if (options.max_steps > 0) return options.max_steps;
  const double rows = options.max_epochs * static_cast<double>(num_rows);
  if (!(std::abs(rows) < 1e18)) {
    throw UsageError(
        fmt::format("--max-epochs {} of {} rows are more than can be counted", options.max_epochs, num_rows));
  }
  return static_cast<std::int64_t>(std::ceil(rows / static_cast<double>(rows_per_step)));
}

namespace {

void refuse_option(std::string_view option, std::string_view owner, const OptimizerType& chosen) {
  throw UsageError(fmt::format("{} belongs to --optimizer {}, not to {}", option, owner, chosen.name));
}

void check_master_dtype(const TrainOptions& o, const OptimizerType& chosen) {
  if (o.sharding.master_dtype.value_or(at::kFloat) == at::kFloat) return;
  if (!chosen.has("master-dtype")) refuse_option("--master-dtype bf16", "anyprecision", chosen);
  if (o.sharding.param_dtype.value_or(o.sharding.precision) != at::kBFloat16)
    throw UsageError("--master-dtype bf16 needs --precision bf16: weights are not kept in less than they are used in");
}

/// Refuses options that the chosen optimizer would ignore.
void check_optimizer_options(const TrainOptions& o) {
  auto options = o.optimizer;
  const auto& chosen = optimizer_type(options.kind);
  for (const auto& option : own_options(options)) {
    if (option.given && !chosen.has(option.name)) refuse_option("--" + std::string(option.name), option.owner, chosen);
  }
  check_master_dtype(o, chosen);
  if (chosen.check != nullptr) chosen.check(options);
}

void check_child_tuning(const TrainOptions& o) {
  const auto& child = o.optimizer.child_tuning;
  if (child.p != ChildTuningOptions().p && child.mode == ChildTuning::off)
    throw UsageError("--child-tuning-p needs --child-tuning");
  if (o.fisher_samples != kFisherSamples && child.mode != ChildTuning::task_driven)
    throw UsageError("--fisher-samples belongs to --child-tuning d");
}

}  // namespace

OptimizerOptions plan_optimizer(const TrainOptions& options) {
  check_optimizer_options(options);
  check_child_tuning(options);
  auto optimizer = options.optimizer;
  optimizer.child_tuning.seed = options.seed;
  return optimizer;
}

std::shared_ptr<const Objective> plan_objective(const TrainOptions&) { return std::make_shared<const Objective>(); }

StepShape plan_step(const TrainOptions& options, const BatchPlan& batches) {
  return {batches.accumulation_steps, takes_bf16_gradients(options.optimizer)};
}

void check_compute_dtype(const TrainOptions& o) {
  const auto& asked = o.sharding.compute_dtype;
  const bool quantized = o.sharding.quantize.enabled();
  if (asks_for_fp8(asked) && quantized)
    throw UsageError("--compute-dtype fp8 multiplies matrices of 16 or 32 bits: leave --quantize out");
  if (asked && !asks_for_fp8(asked) && !quantized)
    throw UsageError("--compute-dtype needs --quantize nf4 (fp8 alone does not)");
}

void check_adapter_options(const TrainOptions& o) {
  const auto& lora = o.sharding.lora;
  const auto& quantize = o.sharding.quantize;
  if (quantize.double_quant && !quantize.enabled()) throw UsageError("--double-quant needs --quantize nf4");
  const LoraConfig usual;
  if (!lora.enabled()) {
    for (const auto& [given, option] :
         {std::pair(lora.rslora, "--rslora"), std::pair(lora.dora, "--dora"),
          std::pair(lora.dropout != 0, "--lora-dropout"), std::pair(lora.alpha != usual.alpha, "--lora-alpha"),
          std::pair(lora.targets != usual.targets, "--lora-targets"),
          std::pair(!lora.exclude.empty(), "--lora-exclude"), std::pair(!lora.layers.empty(), "--lora-layers"),
          std::pair(!lora.rank_pattern.empty(), "--lora-rank-pattern"),
          std::pair(!lora.alpha_pattern.empty(), "--lora-alpha-pattern"), std::pair(lora.lora_bias, "--lora-bias"),
          std::pair(lora.bias != usual.bias, "--train-bias"),
          std::pair(!lora.modules_to_save.empty(), "--modules-to-save"),
          std::pair(!lora.token_rows.empty(), "--trainable-tokens"),
          std::pair(quantize.enabled(), "--quantize (weights in 4 bits cannot be trained themselves)"),
          std::pair(!o.save_final_adapter.empty(), "--save-final-adapter")}) {
      if (given) throw UsageError(fmt::format("{} needs --lora-rank or --adapter", option));
    }
    return;
  }
  if (lora.dora && lora.lora_bias) throw UsageError("--lora-bias and --dora contradict each other, in peft as well");
  // peft writes the field of an adapter whatever else the adapter has.
  const bool of_file = !o.adapter.empty() || !o.restart_checkpoint.empty();
  if (lora.ensure_weight_tying && lora.modules_to_save.empty() && !of_file)
    throw UsageError("--ensure-weight-tying needs --modules-to-save");
  if (!o.save_final_full.empty())
    throw UsageError(
        "--save-final-full is for whole models: adapters go to OUT/RUN/adapter and to --save-final-adapter DIR, the "
        "model with them to --save-final-hf DIR");
  if (!o.adapter.empty() && !o.restart_checkpoint.empty())
    throw UsageError(
        "--adapter and --restart-checkpoint-file contradict each other: a checkpoint has its own adapters");
}

namespace {

/// Refuses options of other schedules than the chosen one.
void check_schedule_options(const TrainOptions& o) {
  using Shape = LrSchedule::Shape;
  const auto& s = o.schedule;
  const bool falls = s.shape != Shape::constant;
  const bool has_value = falls && s.shape != Shape::linear && s.shape != Shape::cosine_times_warmup;
  for (const auto& [given, fits, message] :
       {std::tuple(s.min_ratio > 0 || o.min_lr > 0, falls,
                   "--min-lr and --min-lr-ratio need a schedule that falls, such as --lr-schedule linear or cosine"),
        std::tuple(s.min_ratio > 0 && o.min_lr > 0, false,
                   "--min-lr and --min-lr-ratio contradict each other: give one of them"),
        std::tuple(s.decay_steps > 0, s.shape == Shape::wsd, "--decay-steps belongs to --lr-schedule wsd"),
        std::tuple(s.decay_curve != LrCurve::linear, s.shape == Shape::wsd,
                   "--decay-shape belongs to --lr-schedule wsd"),
        std::tuple(s.value > 0, has_value,
                   "--schedule-value belongs to --lr-schedule cosine, cosine-restarts, polynomial, inverse-sqrt or "
                   "wsd")}) {
    if (given && !fits) throw UsageError(message);
  }
  if (o.min_lr > s.peak)
    throw UsageError(fmt::format("--min-lr {} is more than --lr {}, from which the rate falls", o.min_lr, s.peak));
}

}  // namespace

LrSchedule plan_schedule(const TrainOptions& options, std::int64_t total_steps) {
  check_schedule_options(options);
  auto schedule = options.schedule;
  if (options.min_lr > 0) schedule.min_ratio = options.min_lr / schedule.peak;
  if (schedule.total_steps == 0) schedule.total_steps = total_steps;
  if (schedule.warmup_steps == 0)
    schedule.warmup_steps = static_cast<std::int64_t>(options.warmup_ratio * static_cast<double>(schedule.total_steps));
  if (schedule.shape != LrSchedule::Shape::wsd) return schedule;
  constexpr std::int64_t kUsualShare = 10;  // of MiniCPM, which named this schedule
  if (schedule.decay_steps == 0) schedule.decay_steps = std::max<std::int64_t>(1, schedule.total_steps / kUsualShare);
  if (schedule.decay_steps > schedule.total_steps - schedule.warmup_steps)
    throw UsageError(
        fmt::format("--decay-steps {} and a warm-up of {} are more than the {} of the schedule: the decay "
                    "is the end of --max-steps or --schedule-steps",
                    schedule.decay_steps, format_count_of(schedule.warmup_steps, "step"),
                    format_count_of(schedule.total_steps, "step")));
  return schedule;
}

namespace {

/// True for the names of places in which a run keeps its checkpoints, and of its claim.
bool is_of_a_run(std::string_view name) { return name == "checkpoints" || name == ".owner"; }

}  // namespace

std::filesystem::path run_directory(const TrainOptions& options) {
  auto name = options.run_name;
  if (name.empty())
    // "ORG/NAME@REVISION" is NAME; a directory may be named with a slash at its end.
    name = (std::filesystem::path(options.model.model.substr(0, options.model.model.find('@'))) / "")
               .parent_path()
               .filename()
               .string();
  const std::filesystem::path relative(name);
  // Names travel in lists, logs and links.
  const bool control = std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < 32 || c == 127; });
  if (name.empty() || name == "." || name == ".." || control)
    throw UsageError("--run-name '" + printable(name) + "' is no name for a directory");
  if (relative.is_absolute() || std::find(relative.begin(), relative.end(), "..") != relative.end()) {
    throw UsageError("--run-name '" + name + "' leads out of --out-dir " + options.out_dir +
                     ": give a name below it, and another --out-dir for another place");
  }
  const auto normal = relative.lexically_normal();
  if (*normal.begin() == kTokenCacheName)
    throw UsageError("--run-name '" + name +
                     "': the folder of this name in --out-dir keeps encoded texts; give another");
  for (const auto& part : normal) {
    if (is_of_a_run(part.string()))
      throw UsageError("--run-name '" + name + "': runs keep their own files in places named " + part.string() +
                       "; give another");
  }
  const auto directory = std::filesystem::path(options.out_dir) / name;
  for (const auto& part : directory) {
    if (part.native().size() > NAME_MAX)
      throw UsageError(
          fmt::format("--out-dir and --run-name: a folder's name of {} bytes ({}...), a file system takes {}",
                      part.native().size(), printable(part.string().substr(0, 32)), NAME_MAX));
  }
  return directory;
}

}  // namespace fsdp
