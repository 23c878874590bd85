#include "lib/training/watch/pace_observer.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "lib/base/process/scheduler.hpp"
#include "lib/flight/flight_recorder.hpp"
#include "lib/training/watch/exclude_file.hpp"

namespace fsdp::detail {
namespace {

/// Hosts by rank, on rank 0.
std::vector<std::string> nodes_of(ProcessGroup& world) { return world.gather(host_name(), 0); }

std::unique_ptr<NvmlGpu> open_gpu(const DeviceBackend* backend, int device) {
  if (backend == nullptr) return nullptr;
  const auto info = backend->info(device);
  return NvmlGpu::open(info.uuid, info.pci_bus_id);
}

}  // namespace

PaceObserver::PaceObserver(Input input)
    : input_(std::move(input)),
      is_on_(input_.every_seconds > 0 && input_.world.size() > 1 && input_.world.recorder() != nullptr),
      gpu_(is_on_ ? open_gpu(input_.backend, input_.device) : nullptr),
      watch_(is_on_ ? nodes_of(input_.world) : std::vector<std::string>()) {}

PaceObserver::Reading PaceObserver::read() const {
  return {.time = std::chrono::steady_clock::now(),
          .use = input_.world.recorder()->time_use(),
          .strain = process_strain(),
          .gpu = gpu_ ? gpu_->read() : NvmlReading()};
}

void PaceObserver::after_step(const StepReport& step, bool last) {
  if (!is_on_ || last) return;
  if (!std::exchange(has_begun_, true)) {
    begin_ = read();
    return;
  }
  if (++num_steps_ >= interval_steps_) compare(step.step);
}

void PaceObserver::compare(std::int64_t step) {
  const auto now = read();
  const auto seconds = [](std::int64_t from_ns, std::int64_t to_ns) {
    return 1e-9 * static_cast<double>(to_ns - from_ns);
  };
  const auto known = [](const std::optional<double>& value) { return value.value_or(RankPace::kUnknown); };
  const auto ecc_errors = [&](const NvmlReading& gpu) { return known(gpu.ecc_corrected) + known(gpu.ecc_uncorrected); };
  const auto work = [&](WorkKind kind) { return seconds(begin_.use.of(kind), now.use.of(kind)); };
  RankPace local{
      .seconds = std::chrono::duration<double>(now.time - begin_.time).count(),
      .wait_seconds = input_.backend != nullptr ? RankPace::kUnknown : seconds(begin_.use.wait_ns, now.use.wait_ns),
      .read_seconds = work(WorkKind::read),
      .write_seconds = work(WorkKind::write),
      .starved_seconds = now.strain.starved_seconds - begin_.strain.starved_seconds,
      .major_faults = now.strain.major_faults - begin_.strain.major_faults,
      .throttles = now.strain.throttles - begin_.strain.throttles,
      .megahertz = now.strain.megahertz,
      .celsius = now.strain.celsius,
      .gpu_megahertz = known(now.gpu.megahertz),
      .gpu_celsius = known(now.gpu.celsius),
      .gpu_limits = known(now.gpu.limits),
      .gpu_ecc_errors = ecc_errors(now.gpu) - ecc_errors(begin_.gpu)};
  std::vector<RankPace> ranks(static_cast<std::size_t>(input_.world.size()));
  const GatherBlock block{std::as_bytes(std::span(&local, 1)), std::as_writable_bytes(std::span(ranks))};
  input_.world.all_gather(std::span(&block, 1))->wait();

  double longest_seconds = 0;
  for (const auto& rank : ranks) longest_seconds = std::max(longest_seconds, rank.seconds);
  const auto steps = std::exchange(num_steps_, 0);
  constexpr double kMostSteps = 1e6;
  const double per_step = std::max(longest_seconds / static_cast<double>(steps), input_.every_seconds / kMostSteps);
  interval_steps_ = std::max<std::int64_t>(1, std::llround(input_.every_seconds / per_step));
  begin_ = read();
  // The first of many short steps only tells how long they are.
  if (input_.world.rank() != 0 || longest_seconds < input_.every_seconds / 2) return;
  const auto message = watch_.add(ranks);
  const auto& slowest = watch_.newest();
  input_.add_metrics({{"step", step},
                      {kRanksKey,
                       {{"seconds", longest_seconds},
                        {"slowest", slowest.rank},
                        {kWaitShareKey, std::isnan(slowest.share) ? nlohmann::json() : nlohmann::json(slowest.share)},
                        {"cause", slowest.is_slow() ? slowest.cause : ""}}}});
  if (message.empty()) return;
  input_.progress.finish();
  input_.log.warning("slow      " + message);
}

void PaceObserver::end() {
  const auto summary = watch_.summary();
  if (!summary.empty()) input_.progress.keep("slow      " + summary);
  exclude_nodes(input_.exclude_file, watch_.slow_nodes(), input_.log);
}

}  // namespace fsdp::detail
