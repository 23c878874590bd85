#include "lib/planning/speed/step_time.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "lib/base/types/index.hpp"

namespace fsdp {
namespace {

/// Duration of one operation on the device, in seconds; `small_products` is the part that exceeds a product's full
/// rate.
struct Duration {
  double seconds = 0;
  double beyond_full_rate = 0;
};

/// On a GPU, products are split into tiles of the result, one per multiprocessor at a time. An incomplete last wave of
/// tiles takes as long as a full one.
double rounding_to_tiles(const WorkItem& work, int multiprocessors) {
  constexpr double kTile = 128;
  const double tiles = std::ceil(work.m / kTile) * std::ceil(work.n / kTile) * work.batch;
  const double full = std::ceil(tiles / multiprocessors) * multiprocessors * kTile * kTile;
  const double useful = std::max(1.0, work.m * work.n * work.batch);
  // The sums of products with few tiles are split, too (split-K).
  const double most = std::max(1.0, std::min(16.0, work.k / kTile));
  return std::max(tiles * kTile * kTile / useful, full / useful / (tiles < multiprocessors ? most : 1.0));
}

/// Bytes per second of updates in the memory of a host with GPUs. A guess, because a GPU's name says nothing about its
/// host: a third of what the memory channels of two sockets transfer.
constexpr double kHostBytesPerSecond = 100e9;

/// Cores share caches and memory bandwidth, so a core is faster while the others are idle.
double bytes_per_second(const WorkItem& work, const DeviceRates& rates, const HostShare& share) {
  const double busy = work.part == StepPart::update ? rates.update_bytes_per_second : rates.bytes_per_second;
  return busy * (1 + (rates.alone_factor - 1) * (1 - std::min(1.0, share.busy)));
}

Duration duration_of(const WorkItem& work, const DeviceRates& rates, const HostShare& share) {
  if (work.on_host && rates.is_gpu) return {work.bytes * share.ranks / kHostBytesPerSecond, 0};
  const double cores = share.cores;
  const double passes = work.bytes / (bytes_per_second(work, rates, share) * cores);
  double seconds = passes, full = 0;
  if (work.kind == WorkItem::Kind::product) {
    full = work.operations() / (rates.flops(work.is_half) * work.speedup * cores);
    // A GPU loads operands while it multiplies; a core alternates between the two.
    seconds = rates.multiprocessors > 0 ? std::max(full * rounding_to_tiles(work, rates.multiprocessors), passes)
                                        : full + passes;
  } else if (work.kind == WorkItem::Kind::attention) {
    seconds = std::max(work.flops / (rates.flops(work.is_half) * rates.attention_part * cores), passes);
  }
  seconds = std::max(seconds, rates.operation_seconds);
  return {seconds, work.kind == WorkItem::Kind::product ? seconds - full : 0};
}

double duration_of(const TransferWork& transfer, const DeviceRates& rates) {
  if (transfer.kind == TransferWork::Kind::to_host) return transfer.bytes / rates.host_bytes_per_second;
  if (transfer.ranks < 2) return 0;
  const double others = transfer.ranks - 1;
  // Ring algorithm; an all-reduce is a reduce-scatter followed by an all-gather.
  const double received =
      transfer.bytes * others / transfer.ranks * (transfer.kind == TransferWork::Kind::all_reduce ? 2 : 1);
  double seconds = received / rates.link_bytes_per_second + others * rates.latency_seconds;
  if (transfer.nodes > 1) {
    const double network = rates.network_bytes_per_second / transfer.groups_at_once;
    seconds = std::max(seconds, received / network + others * rates.network_latency_seconds);
  }
  return seconds;
}

TimeCause cause_of(const WorkItem& work) {
  if (work.part == StepPart::exchange) return TimeCause::communication;
  if (work.part == StepPart::update) return TimeCause::update;
  if (work.again) return TimeCause::recomputation;
  switch (work.kind) {
    case WorkItem::Kind::product:
      return TimeCause::products;
    case WorkItem::Kind::attention:
      return TimeCause::attention;
    case WorkItem::Kind::pass:
      return work.part == StepPart::block || work.part == StepPart::head ? TimeCause::passes : TimeCause::other;
    default:
      return TimeCause::communication;
  }
}

class Clock {
 public:
  Clock(const DeviceRates& rates, const HostShare& share) : rates_(rates), share_(share) {
    if (share_.cores < 1) share_.cores *= rates.shared_part;
  }

  void run(const WorkItem& work) {
    if (work.kind == WorkItem::Kind::start) {
      begin(work);
    } else if (work.kind == WorkItem::Kind::wait) {
      wait(work);
    } else {
      operate(work);
    }
  }

  StepTime finish() {
    // At the end of a step the host waits for the device, and for transfers already started for the next step.
    if (rates_.is_gpu) book(StepPart::exchange, TimeCause::communication, std::max(0.0, transfers_ - now_));
    time_.seconds = now_;
    return time_;
  }

 private:
  void operate(const WorkItem& work) {
    if (work.on_host && rates_.is_gpu) return operate_on_host(work);
    host_ += work.times * rates_.launch_seconds;
    const auto [one, beyond] = duration_of(work, rates_, share_);
    const double factor = factor_of(work.part);
    const double busy = work.times * one * factor;
    // The operation cannot end before the host has launched its last kernel, which is now.
    const double idle = std::max(0.0, host_ - (now_ + busy));
    book(work.part, TimeCause::launches, idle);
    const auto cause = cause_of(work);
    const double small = cause == TimeCause::products ? work.times * beyond * factor : 0;
    book(work.part, TimeCause::small_products, small);
    book(work.part, cause, busy - small);
  }

  /// The host waits for the device and computes, and the device waits for the host.
  void operate_on_host(const WorkItem& work) {
    book(work.part, TimeCause::launches, std::max(0.0, host_ - now_));
    book(work.part, cause_of(work), work.times * duration_of(work, rates_, share_).seconds * factor_of(work.part));
    host_ = now_;
  }

  /// Starts a transfer. On a host, it only progresses while the host waits for it.
  void begin(const WorkItem& work) {
    const double seconds = duration_of(work.transfer, rates_) * factor_of(StepPart::exchange);
    if (!rates_.is_gpu) {
      pending_[work.id] = seconds;
      return;
    }
    host_ += rates_.launch_seconds;
    transfers_ = std::max({now_, transfers_, host_}) + seconds;
    pending_[work.id] = transfers_;
  }

  void wait(const WorkItem& work) {
    const auto found = pending_.find(work.id);
    if (found == pending_.end()) return;
    const double seconds = rates_.is_gpu ? std::max(0.0, found->second - now_) : found->second;
    book(StepPart::exchange, TimeCause::communication, seconds);
    pending_.erase(found);
  }

  double factor_of(StepPart part) const { return element(rates_.factors, part); }

  void book(StepPart part, TimeCause cause, double seconds) {
    now_ += seconds;
    element(time_.parts, part) += seconds;
    element(time_.causes, cause) += seconds;
  }

  const DeviceRates& rates_;
  HostShare share_;
  double host_ = 0, now_ = 0, transfers_ = 0;
  std::map<int, double> pending_;  ///< by transfer id: end time on a GPU, duration on a host
  StepTime time_;
};

}  // namespace

const char* to_string(TimeCause cause) {
  constexpr std::array<const char*, kNumTimeCauses> kNames{"products", "small products", "attention",
                                                           "passes",   "recomputation",  "communication",
                                                           "update",   "launches",       "other"};
  return element(kNames, cause);
}

StepTime time_of_step(const WorkLog& log, const DeviceRates& rates, const HostShare& share) {
  Clock clock(rates, share);
  for (const auto& work : log.work()) clock.run(work);
  return clock.finish();
}

StepTime time_of_step(const StepWork& work, const DeviceRates& rates, const HostShare& share) {
  auto time = time_of_step(work.log, rates, share);
  if (work.more <= 0) return time;
  const auto less = time_of_step(work.before_last, rates, share);
  const auto extend = [&](double& of_all, double of_less) { of_all += work.more * std::max(0.0, of_all - of_less); };
  extend(time.seconds, less.seconds);
  for (std::size_t p = 0; p < time.parts.size(); ++p) extend(time.parts[p], less.parts[p]);
  for (std::size_t c = 0; c < time.causes.size(); ++c) extend(time.causes[c], less.causes[c]);
  return time;
}

std::string describe_causes(const StepTime& time) {
  std::vector<std::pair<double, TimeCause>> causes;
  for (int c = 0; c < kNumTimeCauses; ++c) {
    const auto cause = static_cast<TimeCause>(c);
    if (time.of(cause) >= 0.01 * time.seconds) causes.emplace_back(time.of(cause), cause);
  }
  std::sort(causes.rbegin(), causes.rend());
  std::string text;
  for (const auto& [seconds, cause] : causes) {
    text += fmt::format("{}{} {:.0f} %", text.empty() ? "" : ", ", to_string(cause), 100 * seconds / time.seconds);
  }
  return text;
}

std::string what_costs(const StepTime& slower, double slower_tokens, const StepTime& faster, double faster_tokens) {
  const double per_token = faster.seconds / faster_tokens;
  double most = 0;
  auto which = TimeCause::other;
  for (int c = 0; c < kNumTimeCauses; ++c) {
    const auto cause = static_cast<TimeCause>(c);
    const double more = slower.of(cause) / slower_tokens - faster.of(cause) / faster_tokens;
    if (more <= most) continue;
    most = more;
    which = cause;
  }
  const double percent = 100 * most / per_token;
  return percent < 0.5 ? "" : fmt::format("{} +{:.0f} %", to_string(which), percent);
}

}  // namespace fsdp
