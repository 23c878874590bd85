#include "apps/finetune/reports/step_log.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/models/config/model_flops.hpp"
#include "lib/training/step/throughput.hpp"

namespace fsdp::detail {

bool StepLog::has(StepMetric::In in) const {
  switch (in) {
    case StepMetric::In::all:
      return true;
    case StepMetric::In::on_gpu:
      return !context_.setup.device.device.is_cpu();
    case StepMetric::In::with_offload:
      return context_.runtime.store() != nullptr;
    case StepMetric::In::with_known_peak:
      return peak_flops_ > 0;
    case StepMetric::In::with_loss_scale:
      return context_.runtime.policy().precision.needs_loss_scale();
  }
  return false;
}

nlohmann::json StepLog::record_of(const StepReport& step) {
  nlohmann::json record{{"job_step", ++steps_}, {"products", context_.products}};
  for (const auto& metric : kStepMetrics) {
    if (metric.key.empty() || !has(metric.in)) continue;
    auto& place = record[nlohmann::json::json_pointer(fmt::format("/{}", metric.key))];
    std::visit([&](auto member) { place = step.*member; }, metric.field);
  }
  for (const auto& mean : step.means) record[kMeansKey][mean.name] = mean.value;
  add_sources(step, record);
  if (!step.has_loss()) record[key_of(&StepReport::loss)] = nullptr;
  if (has(StepMetric::In::with_loss_scale) || step.skipped) record["skipped"] = step.skipped;
  if (record_.is_saving()) record["saving"] = true;
  return record;
}

/// Adds what the step had of each source of a mixture.
void StepLog::add_sources(const StepReport& step, nlohmann::json& record) {
  if (step.sources.empty()) return;
  const auto& data = *context_.setup.train_data;
  const auto before = data.places(step.first_sample), after = data.places(step.first_sample + step.samples);
  for (std::size_t i = 0; i < step.sources.size(); ++i) {
    const auto& [name, loss, weight] = step.sources[i];
    const auto& place = after[i].rows;
    auto& part = record[kSourcesKey][name] = {{"samples", place.samples - before[i].rows.samples},
                                              {"tokens", static_cast<std::int64_t>(std::llround(weight))},
                                              {"epochs", place.epochs()}};
    part["loss"] = weight > 0 ? nlohmann::json(loss) : nlohmann::json();
    const auto& source = data.sources()[i];
    const bool has_ended = after[i].in_mixture >= source.end() || after[i].in_mixture < before[i].in_mixture;
    const bool begins_again = data.end() == MixEnd::repeat || (data.end() == MixEnd::drop && !has_ended);
    if (place.epoch > before[i].rows.epoch && context_.world.rank() == 0)
      context_.progress.keep(fmt::format("source    {} is through with its {}, epoch {}{}", name,
                                         format_count_of(source.rows.num_rows(), "row"), place.epoch,
                                         begins_again                 ? ": it begins again, in another order"
                                         : data.end() == MixEnd::drop ? ": its share goes to the others until all "
                                                                        "have ended"
                                                                      : ""));
  }
}

void StepLog::after_step(const StepReport& made, bool) {
  log_graphs();
  const auto total_steps = context_.setup.total_steps;
  StepReport step = made;
  const double rate = step.tokens_per_second = static_cast<double>(step.tokens) / step.seconds;
  step.loss_scale = context_.trainer.state().loss_scale;
  const auto& runtime = context_.runtime;
  const double flops = rate * flops_per_token(runtime.decoder().config, attended_length_, runtime.decoder().parameters,
                                              runtime.trainable())
                                  .total();
  if (peak_flops_ > 0 && flops > peak_flops_) {
    // A rate above the peak means that other work slowed down the measurement of the peak.
    context_.progress.keep(
        fmt::format("peak      {:.4g} TFLOP/s was measured too low: this step reaches {:.4g}, of which the "
                    "percentages are from here on",
                    peak_flops_ / 1e12, flops / 1e12));
    peak_flops_ = flops;
  }
  step.mfu = peak_flops_ > 0 ? flops / peak_flops_ : 0;
  record_.add_metrics(record_of(step));
  const auto rest = fmt::format("norm {:.3g}   lr {:.1e}   {} tok/s{}{}", step.grad_norm, step.lr,
                                format_count(static_cast<std::int64_t>(rate)),
                                peak_flops_ > 0 ? fmt::format("   {:.0f} % of peak", 100 * step.mfu) : "",
                                step.overflow  ? "   skipped (fp16 overflow)"
                                : step.skipped ? "   skipped (not finite)"
                                               : "");
  auto loss = step.has_loss() ? fmt::format("{:.4f}", step.loss) : std::string("none (no targets)");
  for (const auto& mean : step.means) {
    if (is_accuracy(mean.name)) loss += fmt::format("   accuracy {:.0f} %", 100 * mean.value);
  }
  context_.progress.step(step.step, total_steps,
                         fmt::format("step {:>6}/{}   loss {}   {}", step.step, total_steps, loss, rest), step.seconds);
}

void StepLog::log_graphs() {
  const auto counts = context_.runtime.engine().recording_counts();
  if (std::exchange(refused_graphs_, counts.refused) == counts.refused) return;
  context_.progress.finish();
  context_.log.warning(
      fmt::format("a CUDA graph could not be captured, from here on micro-batches of its shape and place in the step "
                  "are launched kernel by kernel, with the same results: {} (--cuda-graphs off says that this is "
                  "meant)",
                  counts.problem.substr(0, counts.problem.find('\n'))));
}

}  // namespace fsdp::detail
