#include "apps/finetune/reports/speed_reporter.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "apps/common/remedies.hpp"
#include "apps/memprobe/run_cost.hpp"
#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/bf16/nccl_log.hpp"
#include "lib/bf16/processor.hpp"
#include "lib/compute/ops/products/fp8.hpp"

namespace fsdp::detail {
namespace {

/// One more than two, because the first step runs with cold caches and is left out.
constexpr std::size_t kFewestSteps = 3;

/// Reads the speed.json files of neighbouring runs and skips files that cannot be read.
std::vector<SpeedOutcome> outcomes_beside(const std::filesystem::path& run_directory) {
  constexpr int kMostRuns = 100;
  std::vector<SpeedOutcome> outcomes;
  std::error_code error;
  int seen = 0;
  for (std::filesystem::directory_iterator it(run_directory.parent_path(), error), end; !error && it != end;
       it.increment(error)) {
    if (++seen > kMostRuns) break;
    try {
      if (!std::filesystem::exists(it->path() / "speed.json", error)) continue;
      const auto more = read_speed_outcomes(it->path() / "speed.json");
      outcomes.insert(outcomes.end(), more.begin(), more.end());
    } catch (const std::exception&) {
      continue;
    }
  }
  return outcomes;
}

}  // namespace

/// Computes how many cores this rank can use: its threads, or fewer when the node's ranks share fewer cores.
/// Collective.
HostShare SpeedReporter::share_of_rank() {
  cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(0, sizeof(set), &set);
  std::string mask(CPU_SETSIZE, '-');
  for (std::size_t cpu = 0; cpu < mask.size(); ++cpu) {
    if (CPU_ISSET(cpu, &set)) mask[cpu] = 'x';
  }
  const auto masks = world_.split_by_node()->gather(mask, 0);
  for (const auto& other : masks) {
    for (std::size_t cpu = 0; cpu < mask.size(); ++cpu) mask[cpu] = std::max(mask[cpu], other[cpu]);
  }
  const auto cores = std::count(mask.begin(), mask.end(), 'x');
  const auto ranks = static_cast<double>(std::max<std::size_t>(1, masks.size()));
  // On a host with more processors than cpu_set_t holds, the mask is empty; assume as many cores as threads.
  const auto threads = static_cast<double>(setup_.threads);
  const auto of_job = cores == 0 ? threads * ranks : static_cast<double>(cores);
  const auto of_host = static_cast<double>(std::max(1U, std::thread::hardware_concurrency()));
  return {.cores = std::min(threads, of_job / ranks),
          .busy = std::min(threads * ranks, of_job) / std::max(of_job, of_host),
          .ranks = ranks};
}

StepTime SpeedReporter::time_of(std::int64_t tokens_per_row) const {
  auto request = *memory_.request();
  const bool same = request.tokens_per_row == tokens_per_row;
  request.tokens_per_row = tokens_per_row;
  const auto work = same ? memory_.prediction()->work : predict_memory(request).work;
  return time_of_step(work, outcome_.rates, outcome_.share);
}

void SpeedReporter::predict(double peak_flops, std::int64_t steps_to_go) {
  const auto share = share_of_rank();
  peak_flops = world_.all_reduce(peak_flops, Reduce::max);
  if (memory_.request() == nullptr) return;  // also on all ranks but rank 0
  const auto& request = *memory_.request();
  outcome_.is_half = setup_.options.sharding.param_dtype.value_or(setup_.options.sharding.precision) != at::kFloat;
  outcome_.has_fp8_products = asks_for_fp8(setup_.options.sharding.compute_dtype);
  outcome_.ranks = world_.size();
  outcome_.ranks_per_node = setup_.ranks_on_node;
  try {
    if (request.gpu) {
      const auto& gpu = *request.gpu;
      const auto& facts = facts_of_gpu(gpu.name, gpu.total_bytes, gpu.compute_capability);
      outcome_.device = gpu.name;
      outcome_.model = facts.name;
      outcome_.rates = rates_of_gpu(facts);
      outcome_.share.ranks = setup_.ranks_on_node;
    } else {
      if (peak_flops <= 0)
        return not_predicted(
            fmt::format("products in {} are too slow here to be measured: the machine is busy, or has "
                        "no fast product of this type",
                        outcome_.is_half ? "16 bits" : "float32"));
      outcome_.device = outcome_.model = read_processor().name;
      outcome_.share = share;
      const double of_core = peak_flops / setup_.threads;
      outcome_.rates = rates_of_processor(outcome_.is_half ? 0 : of_core, outcome_.is_half ? of_core : 0,
                                          "products as measured now");
    }
    auto known = outcome_.rates;
    const auto outcomes = outcomes_beside(setup_.directory);
    calibrate_speed(outcomes, {outcome_.model, outcome_.has_fp8_products}, known);
    if (!request.gpu) {  // keep the measured product rates; earlier runs give the other rates
      known.half_flops = outcome_.rates.half_flops;
      known.float32_flops = outcome_.rates.float32_flops;
    }
    outcome_.rates = known;
    outcome_.predicted = time_of(request.tokens_per_row);
  } catch (const std::exception& error) {
    return not_predicted(told(error));  // the job goes on
  }
  is_predicted_ = std::isfinite(outcome_.predicted.seconds) && outcome_.predicted.seconds > 0;
  if (!is_predicted_) return not_predicted("a step would take no time that can be stated");
  const double tokens = memory_.prediction()->tokens_per_step;
  log_.info(fmt::format("speed     predicted {} tok/s, {:.3g} s a step: {}   by {}",
                        format_count(static_cast<std::int64_t>(tokens / outcome_.predicted.seconds)),
                        outcome_.predicted.seconds, describe_causes(outcome_.predicted), outcome_.rates.source));
  const auto length = predicted(steps_to_go);
  const bool of_gpus = outcome_.rates.is_gpu;
  const auto paid = length[of_gpus ? "gpu_hours" : "node_hours"].get<double>();
  constexpr double kWorthSaying_hours = 0.1;
  log_.info(fmt::format(
      "length    {} to go: about {}{}", format_count_of(steps_to_go, "step"), format_duration(length["seconds"]),
      paid < kWorthSaying_hours ? "" : fmt::format(", {:.3g} {}-hours", paid, of_gpus ? "GPU" : "node")));
}

void SpeedReporter::not_predicted(const std::string& why) {
  why_not_ = why;
  log_.info("speed     not predicted: " + why);
}

nlohmann::json SpeedReporter::predicted(std::int64_t steps_to_go) const {
  if (!is_predicted_) return nullptr;
  const double seconds = outcome_.predicted.seconds * static_cast<double>(steps_to_go);
  const bool of_gpus = outcome_.rates.is_gpu;
  constexpr double kSecondsPerHour = 3600;
  return {{"seconds_per_step", outcome_.predicted.seconds},
          {"tokens_per_second", memory_.prediction()->tokens_per_step / outcome_.predicted.seconds},
          {"steps", steps_to_go},
          {"seconds", seconds},
          {of_gpus ? "gpu_hours" : "node_hours",
           paid_hours(seconds / kSecondsPerHour, world_.size(), setup_.ranks_on_node, of_gpus)}};
}

void SpeedReporter::after_step(const StepReport& step, bool) {
  if (!is_predicted_ || step.tokens == 0) return;
  auto parts = timer_.parts();
  // Time outside of named parts, such as the agreement of ranks, counts as "other".
  const double named = std::accumulate(parts.begin(), parts.end(), 0.0);
  parts[static_cast<std::size_t>(StepPart::other)] += std::max(0.0, step.seconds - named);
  steps_.push_back({step.seconds, static_cast<double>(step.tokens), step.longest_row, parts});
  if (steps_.size() == kFewestSteps && outcome_.rates.is_gpu) warn_if_slow();
}

/// Says early that a job takes far longer than it should: by the faster of the steps after the first.
void SpeedReporter::warn_if_slow() {
  const auto transport = nccl_log_ == nullptr ? "" : nccl_log_->transport_since();
  if (nccl_log_ != nullptr) nccl_log_->remove();
  const auto faster = std::min_element(steps_.begin() + 1, steps_.end(), [](const Timed& a, const Timed& b) {
    return a.seconds / a.tokens < b.seconds / b.tokens;
  });
  const double of_token = outcome_.predicted.seconds / memory_.prediction()->tokens_per_step;
  // The prediction of a tiny model may be far off, because its steps are the host's work.
  constexpr double kNoticed_seconds = 0.1;
  if (faster->seconds < kNoticed_seconds) return;
  const auto words = slow_words(faster->seconds / faster->tokens / of_token, transport);
  if (words.empty()) return;
  progress_.finish();
  log_.warning(words);
}

/// Returns the middle half by time per token, without the first step, which leaves out disturbed and short steps.
std::vector<SpeedReporter::Timed> SpeedReporter::usual_steps() const {
  auto steps = std::vector<Timed>(steps_.begin() + 1, steps_.end());
  const auto per_token = [](const Timed& step) { return step.seconds / step.tokens; };
  std::sort(steps.begin(), steps.end(), [&](const Timed& a, const Timed& b) { return per_token(a) < per_token(b); });
  const auto quarter = static_cast<std::ptrdiff_t>(steps.size() / 4);
  return {steps.begin() + quarter, steps.end() - quarter};
}

void SpeedReporter::report(nlohmann::json& report) {
  if (!is_predicted_ || steps_.size() < kFewestSteps) return;
  const auto steps = usual_steps();
  const auto count = static_cast<double>(steps.size());
  double tokens = 0, seconds = 0, rows = 0;
  std::array<double, kNumStepParts> parts{};
  for (const auto& step : steps) {
    tokens += step.tokens / count;
    seconds += step.seconds / count;
    rows += static_cast<double>(step.longest_row) / count;
    for (std::size_t p = 0; p < parts.size(); ++p) parts[p] += step.parts[p] / count;
  }
  outcome_.steps = static_cast<int>(steps.size());
  outcome_.tokens = tokens;
  outcome_.seconds = seconds;
  if (!outcome_.rates.is_gpu) outcome_.parts = parts;
  try {
    // The prediction is for the longest possible row; texts may be shorter. Packed rows are full.
    const auto usual_row = static_cast<std::int64_t>(rows + 0.5);
    const auto& request = *memory_.request();
    if (request.documents.empty() && usual_row > 0 && usual_row < request.tokens_per_row)
      outcome_.predicted = time_of(usual_row);
    report["speed"] = to_json(outcome_);
    replace_file(setup_.directory / "speed.json", printable_json(report["speed"], 2) + "\n");
  } catch (const std::exception& error) {
    log_.warning(fmt::format("speed.json: {}", error.what()));  // training continues
    return;
  }
  log_.info(fmt::format("speed     {} tok/s, {:.3g} s a step   {}",
                        format_count(static_cast<std::int64_t>(tokens / seconds)), seconds,
                        beside_prediction(outcome_)));
}

}  // namespace fsdp::detail
