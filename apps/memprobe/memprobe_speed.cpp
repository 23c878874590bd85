#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "apps/memprobe/memprobe_job.hpp"
#include "lib/base/process/usable_resources.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/bf16/processor.hpp"
#include "lib/compute/ops/products/fp8.hpp"
#include "lib/training/step/throughput.hpp"

namespace fsdp::detail {
namespace {

/// Measures FLOP/s of one core of this host and takes the best of all ranks. Uses one thread, because other work on the
/// machine disturbs several threads that wait for each other more.
DeviceRates measured_rates(ProcessGroup& world, const std::vector<c10::ScalarType>& precisions) {
  const DeviceChoice host;
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  std::array<double, 2> flops{};
  for (const auto precision : precisions) {
    flops[precision == c10::ScalarType::Float ? 0 : 1] = peak_flops(host, precision);
  }
  at::set_num_threads(threads);
  world.all_reduce(flops, Reduce::max);
  return rates_of_processor(flops[0], flops[1], "products as measured here");
}

/// Reads the speed files that --calibration names and leaves out files about memory.
std::vector<SpeedOutcome> earlier_runs(const std::vector<std::string>& paths) {
  std::vector<SpeedOutcome> outcomes;
  for (const auto& path : paths) {
    if (std::filesystem::path(path).filename() == "memory.json") continue;
    const auto more = read_speed_outcomes(path);
    outcomes.insert(outcomes.end(), more.begin(), more.end());
  }
  return outcomes;
}

}  // namespace

SpeedModel::SpeedModel(ProcessGroup& world, const MemprobeOptions& options, const std::optional<GpuSpec>& gpu)
    : node_cores_(options.cores > 0 ? options.cores : usable_cores()) {
  if (gpu) {
    const auto& facts = facts_of_gpu(gpu->name, gpu->total_bytes, gpu->compute_capability);
    model_ = facts.name;
    rates_ = rates_of_gpu(facts);
  } else if (options.rates_file.empty()) {
    model_ = read_processor().name;
    rates_ = measured_rates(world, options.precisions);
  }
  if (!options.rates_file.empty()) {
    const auto checked = take_check(options.rates_file, rates_, options.check_threads);
    if (!gpu) model_ = checked;
  }
  constexpr double kGiga = 1e9;
  if (options.link_gb_per_s > 0) rates_.link_bytes_per_second = kGiga * options.link_gb_per_s;
  if (options.network_gb_per_s > 0) rates_.network_bytes_per_second = kGiga * options.network_gb_per_s;
  auto outcomes = earlier_runs(options.calibrations);
  // Given bandwidths replace measured ones, so leave out runs that used other links.
  std::erase_if(outcomes, [&](const SpeedOutcome& outcome) {
    return (options.link_gb_per_s > 0 && outcome.ranks > 1) ||
           (options.network_gb_per_s > 0 && outcome.ranks > outcome.ranks_per_node);
  });
  if (!options.rates_file.empty()) outcomes.clear();  // their factors refer to other rates
  calibration_ = calibrate_speed(outcomes, {model_, asks_for_fp8(options.train.sharding.compute_dtype)}, rates_);
}

HostShare SpeedModel::share_of(const Combination& c) const {
  const double ranks = std::min(c.ranks, c.ranks_per_node), share = node_cores_ / ranks;
  if (rates_.is_gpu) return {.ranks = ranks};
  const double threads = threads_of_rank(static_cast<int>(ranks), node_cores_).threads;
  return {.cores = std::min(share, threads), .busy = std::min(1.0, threads * ranks / node_cores_), .ranks = ranks};
}

std::optional<StepSpeed> SpeedModel::of(const MemoryPrediction& prediction, const Combination& c) const {
  StepSpeed speed;
  const auto share = share_of(c);
  speed.time = time_of_step(prediction.work, rates_, share);
  speed.tokens = prediction.tokens_per_step;
  if (!std::isfinite(speed.time.seconds) || speed.time.seconds <= 0) return std::nullopt;
  speed.tokens_per_second = speed.tokens / speed.time.seconds;
  const double peak = rates_.peak(c.precision != c10::ScalarType::Float) * share.cores;
  if (peak > 0) speed.mfu = prediction.useful_flops / speed.time.seconds / peak;
  return speed;
}

nlohmann::json SpeedModel::json() const {
  auto json = to_json(rates_);
  json["model"] = model_;
  json["runs"] = calibration_.runs;
  if (calibration_.runs > 0) {
    json["lowest_error"] = calibration_.lowest_error;
    json["highest_error"] = calibration_.highest_error;
  }
  return json;
}

std::int64_t fastest_batch(const std::vector<std::int64_t>& batches, std::int64_t largest,
                           const std::function<double(std::int64_t)>& tokens_per_second) {
  constexpr double kAsGood = 0.995;
  std::vector<std::pair<std::int64_t, double>> tried;
  double best = 0;
  for (const std::int64_t part : {1, 2, 4, 8}) {
    // Take the largest allowed batch up to this fraction of the largest.
    const auto next = std::upper_bound(batches.begin(), batches.end(), largest / part);
    if (next == batches.begin()) break;
    const auto batch = *std::prev(next);
    if (!tried.empty() && tried.back().first == batch) continue;
    tried.emplace_back(batch, tokens_per_second(batch));
    best = std::max(best, tried.back().second);
  }
  auto chosen = largest;
  for (const auto& [batch, speed] : tried) {
    if (speed >= kAsGood * best) chosen = std::min(chosen, batch);
  }
  return chosen;
}

std::size_t best_answer(const std::vector<Answer>& answers, bool largest) {
  const auto better = [&](const Answer& a, const Answer& b) {
    if (a.fits != b.fits) return a.fits;
    const auto size = [](const Answer& x) { return x.fits ? x.batch_size * x.combination.ranks : 0; };
    const auto speed = [](const Answer& x) { return x.speed ? x.speed->tokens_per_second : 0.0; };
    if (!largest && speed(a) != speed(b)) return speed(a) > speed(b);
    // Prefer the most sequences per step, then the least communication and computation.
    if (size(a) != size(b)) return size(a) > size(b);
    const auto work = [](const Answer& x) {
      return x.prediction.flops +
             static_cast<double>(x.prediction.comm.shard.bytes + x.prediction.comm.replicate.bytes);
    };
    return work(a) < work(b);
  };
  std::size_t best = 0;
  for (std::size_t i = 1; i < answers.size(); ++i) {
    if (better(answers[i], answers[best])) best = i;
  }
  return best;
}

void sort_by_speed(std::vector<Answer>& answers) {
  const auto speed = [](const Answer& x) { return x.fits && x.speed ? x.speed->tokens_per_second : -1.0; };
  std::stable_sort(answers.begin(), answers.end(),
                   [&](const Answer& a, const Answer& b) { return speed(a) > speed(b); });
}

std::string describe_speed(const StepSpeed& speed) {
  return fmt::format("{} tok/s, {:.3g} s a step, {:.0f} % MFU: {}",
                     format_count(static_cast<std::int64_t>(speed.tokens_per_second)), speed.time.seconds,
                     100 * speed.mfu, describe_causes(speed.time));
}

nlohmann::json speed_json(const StepSpeed& speed) {
  nlohmann::json json{{"tokens_per_second", speed.tokens_per_second},
                      {"step_seconds", speed.time.seconds},
                      {"tokens_per_step", speed.tokens},
                      {"mfu", speed.mfu}};
  for (int c = 0; c < kNumTimeCauses; ++c) {
    const auto cause = static_cast<TimeCause>(c);
    json["seconds"][to_string(cause)] = speed.time.of(cause);
  }
  return json;
}

}  // namespace fsdp::detail
