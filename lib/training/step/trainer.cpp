#include "lib/training/step/trainer.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <exception>
#include <numeric>
#include <utility>

#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/error.hpp"
#include "lib/compute/ops/updates/clip_divisor.hpp"
#include "lib/compute/tensor/host_allocator.hpp"
#include "lib/ranks/agree.hpp"

namespace fsdp {
namespace {

constexpr double kFirstLossScale = 65536.0;
constexpr std::int64_t kScaleGrowthSteps = 2000;

/// Replaces figures of this rank by the maximum over all ranks: the longest wait, the most memory.
void reduce_to_worst(ProcessGroup& world, StepReport& report) {
  std::vector<double> worst;
  for (const auto& metric : kStepMetrics) {
    if (metric.worst_of_ranks) worst.push_back(metric.value(report));
  }
  world.all_reduce(worst, Reduce::max);
  auto next = worst.begin();
  for (const auto& metric : kStepMetrics) {
    if (metric.worst_of_ranks) metric.set(report, *next++);
  }
}

StepReaderOptions reader_options(ModelRuntime& runtime, const TrainerOptions& options) {
  const auto& decoder = runtime.decoder();
  return {runtime.data_ranks(), options.batches.micro_batch_size, options.seed,
          decoder.config.dropout > 0 || decoder.options.lora.dropout > 0};
}

/// Zero unless parameters are stored on disk.
StoreStats stats_of(const TensorStore* store) { return store == nullptr ? StoreStats() : store->stats(); }

}  // namespace

Trainer::Trainer(ModelRuntime& runtime, const DataLoader& loader, const TrainerOptions& options)
    : runtime_(runtime), loader_(loader), options_(options), reader_(loader, reader_options(runtime, options)) {
  auto& engine = runtime_.engine();
  std::vector<OptimizerParam> params;
  for (std::size_t i = 0; i < engine.num_parameters(); ++i) {
    const auto& layout = engine.layout(i);
    const auto& spec = runtime_.decoder().parameters[i];
    params.push_back({engine.stored_master_weight(i), layout.decay || options.decay_all, layout, engine.range(i),
                      spec.embedding, spec.block >= 0});
  }
  optimizer_ = make_optimizer(
      {runtime_.ops(), std::move(params), options.optimizer, &runtime_.shard_collectives(), runtime_.store()});
  if (auto* store = runtime_.store()) run_agreed(runtime_.world(), [&] { store->reserve(); });
  if (runtime_.policy().precision.needs_loss_scale()) state_.loss_scale = kFirstLossScale;
  // A node with another environment or GPU would take part in other collectives.
  const bool decides = optimizer_->supports_device_decision() && engine.decides_on_device();
  device_decides_ = runtime_.world().all_reduce(decides ? 1.0 : 0.0, Reduce::min) > 0;
}

/// Loads the micro-batches of the report's step onto the device, and fills the report's tokens and weight with those of
/// this rank, and `second_count` with its StepCounts::tokens. With a device that computes, the samples of the next step
/// are read meanwhile. \param next_samples  samples of the next step; 0 if unknown
std::vector<MicroBatch> Trainer::load(StepReport& report, double& second_count, std::int64_t next_samples) {
  const EngineObservers::Scope scope(runtime_.engine().observers(), "read tokens", "input");
  auto batches = reader_.read(report.first_sample, report.samples);
  for (auto& batch : batches) {
    report.tokens += batch.num_targets;
    const auto counts = weigh(*options_.objective, runtime_, batch);
    report.weight += counts.count;
    second_count += counts.tokens;
    if (batch.rows > 0) report.longest_row = std::max(report.longest_row, batch.length);
    send_to(runtime_.ops(), batch);
  }
  if (next_samples > 0 && runtime_.has_values() && !runtime_.ops().on_host())
    reader_.read_ahead(report.first_sample + report.samples, next_samples);
  return batches;
}

/// Computes gradients of the samples that the step's report names, and fills the report's tokens and weight. \return
/// the sums of this rank, or nullopt when asked to stop
std::optional<StepSums> Trainer::compute_gradients(StepUnderWay& step, std::int64_t next_samples,
                                                   const std::function<bool()>& stop_wanted) {
  const auto start = Clock::now();
  auto& report = step.report;
  auto& world = runtime_.world();
  const auto& objective = *options_.objective;
  const auto& observers = runtime_.engine().observers();
  observers.place(report.step, 0);
  double second_count = 0;
  auto batches = load(report, second_count, next_samples);
  report.data_wait_seconds = seconds_since(start);

  // The counts scale every gradient, so they are known before the first backward.
  std::vector<double> total{static_cast<double>(report.tokens)};
  if (objective.has_weights()) total.insert(total.end(), {report.weight, second_count});
  world.all_reduce(total, Reduce::sum);
  report.tokens = static_cast<std::int64_t>(total.front());
  report.weight = objective.has_weights() ? total[1] : total.front();
  StepCounts counts{report.weight, total.back()};
  if (objective.needs_divergence()) {
    Divergence divergence(runtime_);
    for (const auto& batch : batches) {
      if (any_rank(world, stop_wanted())) return std::nullopt;
      divergence.add(batch);
    }
    counts.divergence = divergence.mean();
  }
  for (auto& batch : batches) batch.of_step = counts;
  const double share = share_of(report.weight);
  auto sums = sums_of(objective, runtime_.engine());
  step.first_forward = runtime_.ops().mark_time();
  for (std::size_t m = 0; m < batches.size(); ++m) {
    observers.place(report.step, static_cast<std::int64_t>(m) + 1);
    if (any_rank(world, stop_wanted())) return std::nullopt;
    const MicroBatchPosition place{m == 0, m + 1 == batches.size()};
    sums += forward_backward(objective, runtime_, batches[m], place, share * state_.loss_scale);
  }
  return sums;
}

/// \return the sums over all ranks, except that of weights, which the report has
StepSums Trainer::read_sums(StepSums sums) {
  // A rank that died shows here as an error, before anything waits for the device without a limit.
  runtime_.synchronize();
  runtime_.ops().fetch(sums);
  std::vector<double> values{sums.nats};
  for (const auto& sum : sums.named) values.push_back(sum.value);
  runtime_.world().all_reduce(values, Reduce::sum);
  sums.nats = values.front();
  for (std::size_t i = 0; i < sums.named.size(); ++i) sums.named[i].value = values[i + 1];
  return sums;
}

bool Trainer::begin_step(std::int64_t max_samples, const std::function<bool()>& stop_wanted) {
  StepUnderWay step;
  step.store = stats_of(runtime_.store());
  auto& report = step.report;
  report.step = state_.step + 1;
  report.first_sample = state_.samples;
  report.samples = std::min(options_.batches.rows_per_step, max_samples);
  const auto next_samples = std::min(options_.batches.rows_per_step, max_samples - report.samples);
  const auto sums = compute_gradients(step, next_samples, stop_wanted);
  if (!sums) {
    reader_.wait();
    return false;
  }
  report.lr = options_.schedule.at(report.step);
  runtime_.engine().observers().place(report.step, 0);
  update(*sums, step);
  state_.step += 1;
  state_.samples += report.samples;
  const auto& [shard, replicate] = runtime_.engine().counts();
  report.shard_all_gathers = shard.all_gathers;
  report.shard_reduce_scatters = shard.reduce_scatters;
  report.shard_bytes = shard.bytes;
  report.replicate_all_reduces = replicate.all_reduces;
  report.replicate_bytes = replicate.bytes;
  report.graphs = runtime_.engine().recording_counts().replayed;
  under_way_.push_back(std::move(step));
  return true;
}

StepReport Trainer::finish_step() {
  auto step = std::move(under_way_.front());
  under_way_.pop_front();
  auto& report = step.report;
  const auto outcome = step.outcome();
  if (outcome.skipped) {
    undo_later_steps();
    if (device_decides_) optimizer_->set_steps(optimizer_->steps() - 1);
  }
  if (last_end_ != nullptr) report.device_gap_seconds = step.first_forward->seconds_since(*last_end_);
  last_end_ = std::move(step.end);
  state_.optimizer_steps = optimizer_->steps();
  take_outcome(outcome, report);
  if (under_way_.empty()) wait_for_reader(report);
  // Where steps overlap, the time of one begins when the step before it has ended.
  report.seconds = seconds_since(std::max(step.start, last_finish_));
  last_finish_ = Clock::now();
  const auto after = stats_of(runtime_.store());
  report.offload_wait_seconds = after.wait_seconds - step.store.wait_seconds;
  report.offload_bytes_read = after.bytes_read - step.store.bytes_read;
  report.offload_bytes_written = after.bytes_written - step.store.bytes_written;
  read_memory(report);
  reduce_to_worst(runtime_.world(), report);
  return std::move(step.report);
}

/// Undoes later steps that were already queued: the device has skipped them, too (StepToDecide::before).
void Trainer::undo_later_steps() {
  for (const auto& step : under_way_) {
    state_.step -= 1;
    state_.samples -= step.report.samples;
    optimizer_->set_steps(optimizer_->steps() - 1);
  }
  under_way_.clear();
}

StepReport Trainer::step(std::int64_t max_samples, const std::function<bool()>& stop_wanted) {
  if (begin_step(max_samples, stop_wanted)) return finish_step();
  StepReport report;
  report.stopped = true;
  return report;
}

/// Waits until the thread that reads ahead is done with the data set, which is not shared with another thread then.
void Trainer::wait_for_reader(StepReport& report) {
  const EngineObservers::Scope scope(runtime_.engine().observers(), "wait for tokens", "input");
  const auto start = Clock::now();
  reader_.wait();
  report.data_wait_seconds += seconds_since(start);
}

/// Decides on the host. One rank's word is enough: a sum need not have the same bits, or the same NaN, on all of them.
StepOutcome Trainer::decide(const StepSums& sums, double scaled_norm) {
  std::array<double, 2> bad{std::isfinite(sums.nats) ? 0.0 : 1.0, std::isfinite(scaled_norm) ? 0.0 : 1.0};
  runtime_.world().all_reduce(bad, Reduce::max);
  StepOutcome outcome{
      .norm = scaled_norm, .nats = sums.nats, .skipped = bad[0] + bad[1] > 0, .loss_is_finite = bad[0] == 0};
  for (const auto& sum : sums.named) outcome.named.push_back(sum.value);
  return outcome;
}

void Trainer::take_outcome(const StepOutcome& outcome, StepReport& report) {
  const auto without_sign = [](double value) { return std::isnan(value) ? std::nan("") : value; };  // of a NaN
  const auto share = share_of(report.weight);
  report.loss = without_sign(outcome.nats * share);
  const auto sums = sums_of(*options_.objective, runtime_.engine());
  const auto [first_group, groups] = sums.groups();
  for (std::size_t i = 0; i < sums.named.size(); ++i) {
    if (i >= first_group && i < first_group + 2 * groups) continue;
    const auto& name = sums.named[i].name;
    const auto per_sum = share_of(*options_.objective, name, report.weight, static_cast<double>(report.tokens));
    const double mean = outcome.named[i] * per_sum;
    if (!std::isnan(mean)) report.means.push_back({name, mean});
  }
  for (std::size_t i = 0; i < groups; ++i) {
    const auto nats = outcome.named[first_group + i], weight = outcome.named[first_group + groups + i];
    report.sources.push_back({runtime_.decoder().options.groups[i], without_sign(nats * share_of(weight)), weight});
  }
  report.grad_norm = without_sign(outcome.norm / state_.loss_scale);
  report.skipped = outcome.skipped;
  if (!runtime_.policy().precision.needs_loss_scale()) return;
  // A finite loss with infinite gradients is what fp16's loss scale is searched by, as long as it can become smaller.
  report.overflow = outcome.skipped && outcome.loss_is_finite && state_.loss_scale > 1.0;
  adjust_loss_scale(outcome.skipped);
}

/// Norm, decision, clipping, update of the master weights, and their cast to what models read. Where the device
/// decides, the host waits for none of it, and the device changes nothing in a step that it skips.
void Trainer::update(const StepSums& sums, StepUnderWay& step) {
  auto& engine = runtime_.engine();
  auto& report = step.report;
  StepOutcome outcome;
  GradScaling scaling;
  if (!device_decides_) {
    const auto all = read_sums(sums);
    outcome = decide(all, engine.gradient_norm());
    scaling.divisor = clip_divisor(outcome.norm, state_.loss_scale, options_.clip_grad_norm);
  }
  std::optional<EngineObservers::Scope> scope(std::in_place, engine.observers(), optimizer_->name().c_str(),
                                              "optimizer");
  if (device_decides_) {
    decision_ = engine.decide_step(sums, state_.loss_scale, options_.clip_grad_norm,
                                   under_way_.empty() ? at::Tensor() : decision_);
    scaling.decision = decision_;
  }
  if (!outcome.skipped) {
    const auto start = Clock::now();
    const auto before = stats_of(runtime_.store());
    optimizer_->begin_step();
    for (const auto& params : engine.parameter_groups(device_decides_ ? UnitPass::update_and_cast : UnitPass::update)) {
      scaling.cast_params.clear();
      for (const auto i : params) {
        if (device_decides_) scaling.cast_params.push_back(engine.all_gather_input(i));
      }
      optimizer_->step_part(params, gradients(params), report.lr, scaling);
    }
    report.update_seconds = seconds_since(start);
    const auto after = stats_of(runtime_.store());
    report.update_bytes = after.bytes_read - before.bytes_read + after.bytes_written - before.bytes_written;
  }
  if (!device_decides_) engine.sync_parameters();  // after a skip, too: the engine's next reduction replaces gradients
  scope.reset();
  step.end = runtime_.ops().mark_time();
  if (device_decides_) {
    step.outcome = runtime_.ops().outcome_of(decision_);
  } else {
    runtime_.synchronize();  // the step ends with its update
    step.outcome = [outcome] { return outcome; };
  }
}

std::vector<at::Tensor> Trainer::gradients(const std::vector<std::size_t>& params) {
  std::vector<at::Tensor> gradients;
  for (const auto i : params) gradients.push_back(runtime_.engine().gradient(i));
  return gradients;
}

std::int64_t Trainer::fisher_batches() const {
  if (options_.optimizer.child_tuning.mode != ChildTuning::task_driven) return 0;
  const auto rows = loader_.num_rows(), per_batch = options_.batches.rows_per_step;
  const auto samples = options_.fisher_samples > 0 ? std::min(options_.fisher_samples, rows) : rows;
  return (samples + per_batch - 1) / per_batch;
}

bool Trainer::measure_fisher(const std::function<bool()>& stop_wanted) {
  auto& engine = runtime_.engine();
  StepUnderWay batch;
  auto& report = batch.report;
  report.samples = options_.batches.rows_per_step;
  report.first_sample = state_.fisher_batches * report.samples;
  const auto sums = compute_gradients(batch, 0, stop_wanted);
  if (!sums) return false;
  const auto all = read_sums(*sums);
  const auto norms = engine.gradient_norms();
  const auto outcome = decide(all, std::accumulate(norms.begin(), norms.end(), 0.0));
  if (outcome.skipped) {
    take_outcome(outcome, report);
    if (!report.overflow) {
      throw RuntimeFailure(
          fmt::format("batch {} of the Fisher pass has a loss or gradients that are not finite: there "
                      "is no child to choose by them",
                      state_.fisher_batches + 1));
    }
    return true;
  }
  // Each parameter's gradient is clipped by itself, as the authors do.
  std::vector<double> divisors;
  for (const auto norm : norms) divisors.push_back(clip_divisor(norm, state_.loss_scale, options_.clip_grad_norm));
  for (const auto& params : engine.parameter_groups(UnitPass::read_gradients))
    optimizer_->add_fisher(params, gradients(params), divisors);
  ++state_.fisher_batches;
  return true;
}

/// Sums of this rank, on the host.
StepSums Trainer::next_sums(int data_rank) {
  const DataRanks ranks{data_rank, runtime_.data_ranks().size};
  const auto rows = options_.batches.micro_batch_size;
  const auto slice = micro_batch_slice(state_.samples, rows * ranks.size, 0, ranks, rows);
  auto batch = reader_.read_micro_batch(slice);
  batch.of_step = weigh(*options_.objective, runtime_, batch);
  send_to(runtime_.ops(), batch);
  auto sums = evaluate(*options_.objective, runtime_, batch);
  runtime_.synchronize();
  runtime_.ops().fetch(sums);
  return sums;
}

double Trainer::next_loss(int data_rank) { return next_sums(data_rank).nats; }

double Trainer::probe_loss() {
  const auto sums = next_sums(runtime_.data_ranks().rank);
  std::array<double, 2> loss{sums.nats, sums.weight};
  runtime_.world().all_reduce(loss, Reduce::sum);
  return loss[1] > 0 ? loss[0] / loss[1] : 0.0;
}

void Trainer::adjust_loss_scale(bool overflow) {
  if (overflow) {
    state_.loss_scale = std::max(1.0, state_.loss_scale * 0.5);
    state_.good_steps = 0;
  } else if (++state_.good_steps >= kScaleGrowthSteps) {
    state_.loss_scale *= 2.0;
    state_.good_steps = 0;
  }
}

void Trainer::read_memory(StepReport& report) const {
  report.peak_memory_bytes = host_memory_stats().peak_bytes;
  struct rusage usage {};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) report.peak_rss_bytes = std::int64_t{1024} * usage.ru_maxrss;
  if (runtime_.backend() == nullptr) return;
  const auto memory = runtime_.backend()->memory(runtime_.device().index());
  report.peak_memory_bytes = memory.allocated_peak_bytes;
  report.reserved_bytes = memory.reserved_bytes;
  report.alloc_retries = memory.num_alloc_retries;
  report.num_ooms = memory.num_ooms;
}

}  // namespace fsdp
