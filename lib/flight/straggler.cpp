#include "lib/flight/straggler.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "lib/base/text/text_format.hpp"

namespace fsdp {
namespace {

/// \return the median of the ranks except `but`; NaN where none of them knows. It is one of their values, as
/// gpu_limits needs, which are bits: not the mean of two, as base/types/median.hpp makes it
double median(std::span<const RankPace> ranks, std::size_t but, double RankPace::*field) {
  std::vector<double> values;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i != but && !std::isnan(ranks[i].*field)) values.push_back(ranks[i].*field);
  }
  if (values.empty()) return RankPace::kUnknown;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct GpuLimit {
  std::uint64_t bit;
  const char* words;
};
// nvml.h, nvmlClocksEventReason*. An idle GPU, set clocks and the usual power cap are none of a slow rank's causes.
constexpr GpuLimit kGpuLimits[] = {{0x8, "a hardware slowdown"},
                                   {0x20, "its temperature (software)"},
                                   {0x40, "its temperature (hardware)"},
                                   {0x80, "the power supply (power brake)"}};

std::string limits_text(double limits) {
  if (!(limits >= 0)) return "";
  std::vector<std::string_view> found;
  for (const auto& limit : kGpuLimits) {
    if ((static_cast<std::uint64_t>(limits) & limit.bit) != 0) found.emplace_back(limit.words);
  }
  return fmt::format("{}", fmt::join(found, ", "));
}

/// A rank and the median of the others.
class Comparison {
 public:
  static constexpr double kSlowClock = 0.9;

  Comparison(std::span<const RankPace> ranks, std::size_t slow) : ranks_(ranks), slow_(slow) {}

  /// Causes that lower the speed of the rank's GPU but not that of the others.
  std::string gpu() const {
    std::vector<std::string> causes;
    if (const auto limits = limits_text(here(&RankPace::gpu_limits));
        !limits.empty() && limits != limits_text(there(&RankPace::gpu_limits))) {
      causes.push_back(fmt::format("its GPU is slowed down by {}{}", limits, heat(&RankPace::gpu_celsius)));
    } else if (here(&RankPace::gpu_megahertz) < kSlowClock * there(&RankPace::gpu_megahertz)) {
      causes.push_back(fmt::format("its GPU runs at {:.0f} MHz, not at {:.0f}{}", here(&RankPace::gpu_megahertz),
                                   there(&RankPace::gpu_megahertz), heat(&RankPace::gpu_celsius)));
    }
    if (const double errors = excess(&RankPace::gpu_ecc_errors); errors > 0)
      causes.push_back(fmt::format("its GPU's memory had {:.0f} ECC errors", here(&RankPace::gpu_ecc_errors)));
    return fmt::format("{}", fmt::join(causes, "; "));
  }

  bool mostly_writes() const {
    const double read = excess(&RankPace::read_seconds), write = excess(&RankPace::write_seconds);
    return write >= read && write > own() - median_own() - read - write;
  }

  std::string cause() const {
    const double read = excess(&RankPace::read_seconds), write = excess(&RankPace::write_seconds);
    const double more = own() - median_own();
    const double compute = more - read - write;
    if (read > write && read > compute)
      return fmt::format("it waits {} longer for its samples than the median rank", in_seconds(read));
    if (mostly_writes()) return fmt::format("it writes {} longer than the median rank", in_seconds(write));
    const auto ratio = fmt::format(
        "it computes {:.2f} times as long as the median rank",
        (own() - here(&RankPace::read_seconds) - here(&RankPace::write_seconds)) /
            std::max(1e-9, median_own() - there(&RankPace::read_seconds) - there(&RankPace::write_seconds)));
    const auto why = machine(compute);
    return ratio + (why.empty() ? std::string(", and nothing that was measured tells why") : ": " + why);
  }

 private:
  double here(double RankPace::*field) const { return ranks_[slow_].*field; }
  double there(double RankPace::*field) const { return median(ranks_, slow_, field); }
  /// 0 where one of both is not known.
  double excess(double RankPace::*field) const {
    const double more = here(field) - there(field);
    return std::isnan(more) ? 0 : more;
  }
  double own() const { return ranks_[slow_].own_seconds(); }
  double median_own() const { return there(&RankPace::seconds) - there(&RankPace::wait_seconds); }
  static std::string in_seconds(double seconds) { return fmt::format("{:.3g} s", seconds); }

  /// Tells by the machine why the rank computes for so many seconds more; "" where nothing does.
  std::string machine(double more_seconds) const {
    constexpr double kFaultSeconds = 1e-3;
    std::vector<std::string> causes;
    if (const double starved = excess(&RankPace::starved_seconds); starved > more_seconds / 2)
      causes.push_back(
          fmt::format("a thread of it was without a processor for {} more: other processes, or too many "
                      "threads, run there",
                      in_seconds(starved)));
    if (const double faults = excess(&RankPace::major_faults); faults * kFaultSeconds > more_seconds / 10)
      causes.push_back(fmt::format("{} of its pages came from disk (swap)",
                                   format_count(static_cast<std::int64_t>(here(&RankPace::major_faults)))));
    if (here(&RankPace::megahertz) < kSlowClock * there(&RankPace::megahertz))
      causes.push_back(fmt::format("its processors run at {:.0f} MHz, not at {:.0f}", here(&RankPace::megahertz),
                                   there(&RankPace::megahertz)));
    if (excess(&RankPace::throttles) > 0)
      causes.push_back(fmt::format("its processors were slowed down {:.0f} times for their heat{}",
                                   here(&RankPace::throttles), heat(&RankPace::celsius)));
    if (auto slowed = gpu(); !slowed.empty()) causes.push_back(std::move(slowed));
    return fmt::format("{}", fmt::join(causes, "; "));
  }
  std::string heat(double RankPace::*field) const {
    return std::isnan(here(field)) ? std::string() : fmt::format(" ({:.0f} C)", here(field));
  }

  std::span<const RankPace> ranks_;
  std::size_t slow_;
};

/// The rank with the slowest clock among those whose GPU is slowed down.
Straggler slowest_gpu(std::span<const RankPace> ranks) {
  Straggler slowest{.rank = 0, .share = RankPace::kUnknown, .cause = {}};
  double lowest_megahertz = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    auto cause = Comparison(ranks, i).gpu();
    const double megahertz = ranks[i].gpu_megahertz;
    if (cause.empty() || (!slowest.cause.empty() && !(megahertz < lowest_megahertz))) continue;
    slowest.rank = static_cast<int>(i);
    slowest.cause = std::move(cause);
    lowest_megahertz = megahertz;
  }
  return slowest;
}

}  // namespace

Straggler slowest_rank(std::span<const RankPace> ranks) {
  if (std::ranges::any_of(ranks, [](const auto& rank) { return std::isnan(rank.wait_seconds); }))
    return slowest_gpu(ranks);
  const auto slowest = std::max_element(ranks.begin(), ranks.end(),
                                        [](const auto& a, const auto& b) { return a.own_seconds() < b.own_seconds(); });
  const auto place = static_cast<std::size_t>(slowest - ranks.begin());
  Straggler straggler{.rank = static_cast<int>(place), .share = 0, .cause = {}};
  const double others = median(ranks, place, &RankPace::wait_seconds);
  if (std::isnan(others) || !(slowest->seconds > 0)) return straggler;
  straggler.share = std::max(0.0, others - slowest->wait_seconds) / slowest->seconds;
  const Comparison comparison(ranks, place);
  straggler.cause = comparison.cause();
  straggler.is_of_node = !comparison.mostly_writes();
  return straggler;
}

StragglerWatch::StragglerWatch(std::vector<std::string> nodes)
    : nodes_(std::move(nodes)),
      has_many_nodes_(std::ranges::any_of(nodes_, [&](const auto& node) { return node != nodes_.front(); })),
      lost_seconds_(nodes_.size()) {}

bool StragglerWatch::is_same(int rank) const {
  if (!last_) return false;
  return rank == last_->rank || (has_many_nodes_ && node_of(rank) == node_of(last_->rank));
}

std::string StragglerWatch::add(std::span<const RankPace> ranks) {
  newest_ = slowest_rank(ranks);
  const auto place = static_cast<std::size_t>(newest_.rank);
  const double seconds = ranks[place].seconds;
  all_seconds_ += seconds;
  if (!std::isnan(newest_.share)) lost_seconds_[place] += newest_.share * seconds;
  const bool waits = newest_.is_slow(), is_last = waits && is_same(newest_.rank);
  if (is_named_) {
    calm_ = is_last ? 0 : calm_ + 1;
    if (calm_ < kIntervals) return "";
    is_named_ = false;
    const int rank = last_->rank;
    last_.reset();
    return fmt::format("rank {} ({}) keeps up again", rank, node_of(rank));
  }
  count_ = is_last ? count_ + 1 : waits ? 1 : 0;
  last_ = waits ? std::optional(newest_) : std::nullopt;
  if (count_ < kIntervals) return "";
  calm_ = 0;
  is_named_ = true;
  const auto who = fmt::format("rank {} ({})", last_->rank, node_of(last_->rank));
  if (std::isnan(last_->share)) return fmt::format("{} is slower than the others: {}", who, last_->cause);
  return fmt::format("{} makes the others wait, {:.0f} % of the time: {}", who, 100 * last_->share, last_->cause);
}

std::string StragglerWatch::summary() const {
  const auto most = std::max_element(lost_seconds_.begin(), lost_seconds_.end());
  if (most == lost_seconds_.end() || *most <= Straggler::kShare * all_seconds_) return "";
  const auto rank = static_cast<int>(most - lost_seconds_.begin());
  return fmt::format("the others waited {:.0f} % of the time for rank {} ({})", 100 * *most / all_seconds_, rank,
                     node_of(rank));
}

std::vector<std::string> StragglerWatch::slow_nodes() const {
  if (!is_named_ || !last_->is_of_node) return {};
  return {node_of(last_->rank)};
}

}  // namespace fsdp
