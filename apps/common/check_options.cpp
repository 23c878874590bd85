#include "apps/common/check_options.hpp"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <tuple>

#include "lib/base/types/error.hpp"
#include "lib/compute/ops/products/fp8.hpp"

namespace fsdp {
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
void check_own_options(const TrainOptions& o) {
  auto options = o.optimizer;
  const auto& chosen = optimizer_type(options.kind);
  for (const auto& option : own_options(options)) {
    if (option.given && !chosen.has(option.name)) refuse_option("--" + std::string(option.name), option.owner, chosen);
  }
  check_master_dtype(o, chosen);
  if (chosen.check == nullptr) return;
  try {
    chosen.check(options);
  } catch (const RequestError& error) {  // begins with the name of an option
    throw UsageError(std::string("--") + error.what());
  }
}

void check_child_tuning(const TrainOptions& o) {
  const auto& child = o.optimizer.child_tuning;
  if (child.p != ChildTuningOptions().p && child.mode == ChildTuning::off)
    throw UsageError("--child-tuning-p needs --child-tuning");
  if (o.fisher_samples != kFisherSamples && child.mode != ChildTuning::task_driven)
    throw UsageError("--fisher-samples belongs to --child-tuning d");
}

}  // namespace

void check_optimizer_options(const TrainOptions& options) {
  check_own_options(options);
  check_child_tuning(options);
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

void check_schedule_options(const TrainOptions& o) {
  const auto& s = o.schedule;
  const bool falls = s.shape != LrSchedule::Shape::constant;
  const bool has_value =
      falls && s.shape != LrSchedule::Shape::linear && s.shape != LrSchedule::Shape::cosine_times_warmup;
  for (const auto& [given, fits, message] :
       {std::tuple(s.min_ratio > 0 || o.min_lr > 0, falls,
                   "--min-lr and --min-lr-ratio need a schedule that falls, such as --lr-schedule linear or cosine"),
        std::tuple(s.min_ratio > 0 && o.min_lr > 0, false,
                   "--min-lr and --min-lr-ratio contradict each other: give one of them"),
        std::tuple(s.decay_steps > 0, s.shape == LrSchedule::Shape::wsd, "--decay-steps belongs to --lr-schedule wsd"),
        std::tuple(s.decay_curve != LrCurve::linear, s.shape == LrSchedule::Shape::wsd,
                   "--decay-shape belongs to --lr-schedule wsd"),
        std::tuple(s.value > 0, has_value,
                   "--schedule-value belongs to --lr-schedule cosine, cosine-restarts, polynomial, inverse-sqrt or "
                   "wsd")}) {
    if (given && !fits) throw UsageError(message);
  }
  if (o.min_lr > s.peak)
    throw UsageError(fmt::format("--min-lr {} is more than --lr {}, from which the rate falls", o.min_lr, s.peak));
}

}  // namespace fsdp
