#include "lib/training/step/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <variant>

#include "lib/base/error.hpp"
#include "lib/base/text_format.hpp"
#include "lib/compute/ops/fp8.hpp"
#include "lib/training/data/token_cache.hpp"

namespace fsdp {

bool trains(const TrainOptions& options) { return options.max_epochs >= 0 || options.max_steps > 0; }

BatchPlan plan_batches(const TrainOptions& options, int world_size) {
  BatchPlan plan;
  plan.micro_batch_size = options.batch_size;
  if (options.batch_size < 1)
    throw UsageError(fmt::format("--batch-size is {}, it must be at least 1", options.batch_size));
  if (options.gradient_accumulation_steps < 0) throw UsageError("--gradient-accumulation-steps must not be negative");
  if (options.total_batch_size < 0) throw UsageError("--total-batch-size must not be negative");
  constexpr std::int64_t kMostRows = 1'000'000'000;  // products of the three stay far from overflow
  const auto at_most = [](std::int64_t value, std::int64_t limit, const char* option) {
    if (value > limit) throw UsageError(fmt::format("{} is {}, it can be at most {}", option, value, limit));
  };
  at_most(options.batch_size, kMostRows, "--batch-size");
  at_most(options.total_batch_size, kMostRows, "--total-batch-size");
  at_most(options.gradient_accumulation_steps, 1'000'000, "--gradient-accumulation-steps");
  const auto per_round = options.batch_size * world_size;
  if (options.total_batch_size == 0) {
    plan.accumulation_steps = std::max(1, options.gradient_accumulation_steps);
    plan.rows_per_step = per_round * plan.accumulation_steps;
    return plan;
  }
  plan.rows_per_step = options.total_batch_size;
  if (options.total_batch_restored && options.total_batch_size % per_round != 0) {
    // Another number of ranks than before keeps the optimization: the step's rows are dealt out as evenly as they go.
    plan.accumulation_steps = static_cast<int>((options.total_batch_size + per_round - 1) / per_round);
    const auto parts = static_cast<std::int64_t>(plan.accumulation_steps) * world_size;
    plan.micro_batch_size = (options.total_batch_size + parts - 1) / parts;
    return plan;
  }
  if (options.total_batch_size % per_round != 0) {
    const auto below = options.total_batch_size / per_round * per_round;
    throw UsageError(fmt::format(
        "--total-batch-size {} is not a multiple of --batch-size {} x {} = {}; use {}{} or another --batch-size",
        options.total_batch_size, options.batch_size, format_count_of(world_size, "rank"), per_round,
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
  const auto wanted = o.sharding.master_dtype.value_or(at::kFloat);
  if (wanted == at::kFloat) return;
  if (!chosen.has("master-dtype")) refuse_option("--master-dtype bf16", "anyprecision", chosen);
  if (wanted != at::kBFloat16)
    throw UsageError(fmt::format("--master-dtype is {}, it must be float32 or bf16", float_type_name(wanted)));
  if (o.sharding.param_dtype.value_or(o.sharding.precision) != at::kBFloat16)
    throw UsageError("--master-dtype bf16 needs --precision bf16: weights are not kept in less than they are used in");
}

void check_range(std::string_view option, double value) {
  if (!(value >= 0 && value < 1))
    throw UsageError(fmt::format("{} is {}, it must be at least 0 and less than 1", option, value));
}

/// Refuses values out of range, and options that the chosen optimizer would ignore.
void check_optimizer_options(const TrainOptions& o) {
  auto options = o.optimizer;
  const auto& chosen = optimizer_type(options.kind);
  for (const auto& option : own_options(options)) {
    const auto name = "--" + std::string(option.name);
    if (option.given && !chosen.has(option.name)) refuse_option(name, option.owner, chosen);
    if (const auto* value = std::get_if<double*>(&option.value)) check_range(name, **value);
    if (const auto* value = std::get_if<std::optional<double>*>(&option.value))
      check_range(name, (*value)->value_or(0));
    if (const auto* value = std::get_if<std::int64_t*>(&option.value); value != nullptr && **value < 1)
      throw UsageError(fmt::format("{} is {}, it must be at least 1", name, **value));
    if (const auto* value = std::get_if<std::optional<at::ScalarType>*>(&option.value);
        value != nullptr && **value == at::kHalf)
      throw UsageError(fmt::format("{} is fp16, choose float32 or bf16", name));
  }
  check_master_dtype(o, chosen);
  if (chosen.check != nullptr) chosen.check(options);
}

void check_child_tuning(const TrainOptions& o) {
  const auto& child = o.optimizer.child_tuning;
  if (child.p != ChildTuningOptions().p && child.mode == ChildTuning::off)
    throw UsageError("--child-tuning-p needs --child-tuning");
  if (!(child.p > 0 && child.p <= 1))
    throw UsageError(fmt::format("--child-tuning-p is {}, it must be greater than 0 and at most 1", child.p));
  if (o.fisher_samples != kFisherSamples && child.mode != ChildTuning::task_driven)
    throw UsageError("--fisher-samples belongs to --child-tuning d");
  if (o.fisher_samples < 0) throw UsageError("--fisher-samples must not be negative");
}

}  // namespace

OptimizerOptions plan_optimizer(const TrainOptions& options) {
  const auto in_unit = [](double beta) { return beta >= 0 && beta < 1; };
  auto optimizer = options.optimizer;
  if (!in_unit(optimizer.beta1) || !in_unit(optimizer.beta2))
    throw UsageError("--betas takes two numbers, each at least 0 and less than 1");
  const auto not_negative = [](double value, const char* option) {
    if (!(value >= 0) || !std::isfinite(value))
      throw UsageError(fmt::format("{} is {}, it must be a number >= 0", option, value));
  };
  not_negative(optimizer.eps, "--eps");
  not_negative(optimizer.weight_decay, "--weight-decay");
  not_negative(options.clip_grad_norm, "--clip-grad-norm");
  check_optimizer_options(options);
  check_child_tuning(options);
  optimizer.child_tuning.seed = options.seed;
  return optimizer;
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
          std::pair(quantize.enabled(), "--quantize (weights in 4 bits cannot be trained themselves)"),
          std::pair(!o.save_final_adapter.empty(), "--save-final-adapter")}) {
      if (given) throw UsageError(fmt::format("{} needs --lora-rank or --adapter", option));
    }
    return;
  }
  if (!o.save_final_full.empty())
    throw UsageError(
        "--save-final-full is for whole models: adapters go to OUT/RUN/adapter and to --save-final-adapter DIR, the "
        "model with them to --save-final-hf DIR");
  if (!o.adapter.empty() && !o.restart_checkpoint.empty())
    throw UsageError(
        "--adapter and --restart-checkpoint-file contradict each other: a checkpoint has its own adapters");
}

LrSchedule plan_schedule(const TrainOptions& options, std::int64_t total_steps) {
  if (!(options.lr >= 0) || !std::isfinite(options.lr))
    throw UsageError(fmt::format("--lr is {}, it must be a number >= 0", options.lr));
  if (options.warmup_steps < 0) throw UsageError("--warmup-steps must not be negative");
  LrSchedule schedule;
  schedule.shape = options.lr_schedule;
  schedule.peak = options.lr;
  schedule.total_steps = options.schedule_steps > 0 ? options.schedule_steps : total_steps;
  schedule.warmup_steps =
      options.warmup_steps > 0
          ? options.warmup_steps
          : static_cast<std::int64_t>(options.warmup_ratio * static_cast<double>(schedule.total_steps));
  return schedule;
}

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
  if (*relative.lexically_normal().begin() == kTokenCacheName)
    throw UsageError("--run-name '" + name +
                     "': the folder of this name in --out-dir keeps encoded texts; give another");
  return std::filesystem::path(options.out_dir) / name;
}

}  // namespace fsdp
