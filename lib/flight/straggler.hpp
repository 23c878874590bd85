#pragma once
// Which rank makes the others wait, and what slows it down.
#include <array>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

/// A rank in an interval of some steps. NaN: not known.
struct RankPace {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  double seconds = 0;       ///< of the interval
  double wait_seconds = 0;  ///< for other ranks; NaN where a GPU computes, whose waits the host does not see
  double read_seconds = 0;  ///< in which it waited for its samples
  double write_seconds = 0;
  double starved_seconds = kUnknown;  ///< see ProcessStrain, here of the interval
  double major_faults = kUnknown;
  double throttles = kUnknown;
  double megahertz = kUnknown;
  double celsius = kUnknown;
  double gpu_megahertz = kUnknown;
  double gpu_celsius = kUnknown;
  double gpu_limits = kUnknown;      ///< NvmlReading::limits
  double gpu_ecc_errors = kUnknown;  ///< of the interval, corrected or not

  double own_seconds() const { return seconds - wait_seconds; }
};
/// All fields, in the order in which ranks send them.
inline constexpr std::array kPaceFields{&RankPace::seconds,       &RankPace::wait_seconds,    &RankPace::read_seconds,
                                        &RankPace::write_seconds, &RankPace::starved_seconds, &RankPace::major_faults,
                                        &RankPace::throttles,     &RankPace::megahertz,       &RankPace::celsius,
                                        &RankPace::gpu_megahertz, &RankPace::gpu_celsius,     &RankPace::gpu_limits,
                                        &RankPace::gpu_ecc_errors};
static_assert(sizeof(RankPace) == kPaceFields.size() * sizeof(double));

struct Straggler {
  static constexpr double kShare = 0.1;  ///< of an interval; shorter waits are no matter

  int rank = 0;
  double share = 0;   ///< of the interval, that the median of the other ranks waited longer than it; NaN: not known
  std::string cause;  ///< "it reads its samples for 3.2 s more than the median rank"; "" with GPUs that are alike
  bool is_of_node = true;  ///< false for writing, since one rank writes some files for all

  bool is_slow() const { return share > kShare || (share != share && !cause.empty()); }
};

/// The rank whose own work took longest. Where waits are not known, the rank whose GPU is slowed down most.
/// \param ranks  all of a job, at least one; a rank alone has a share of 0
Straggler slowest_rank(std::span<const RankPace> ranks);

/// Names a rank that makes the others wait for long.
class StragglerWatch {
 public:
  static constexpr int kIntervals = 3;  ///< one after the other, until the rank is named, or no longer

  /// \param nodes  of the ranks, by rank
  explicit StragglerWatch(std::vector<std::string> nodes);

  /// Adds an interval. \return what is to be said about it; "": nothing new
  std::string add(std::span<const RankPace> ranks);
  /// The slowest rank of the interval that was added last.
  const Straggler& newest() const { return newest_; }
  /// Names the rank that the others have waited for longest, where that was more than Straggler::kShare of all
  /// intervals.
  std::string summary() const;
  /// The node that the next job had better leave out: that of a rank that was named and is slow still.
  std::vector<std::string> slow_nodes() const;

 private:
  /// True for `last_` or, since ranks of a node share what slows them down, another rank of its node.
  bool is_same(int rank) const;
  const std::string& node_of(int rank) const { return nodes_[static_cast<std::size_t>(rank)]; }

  std::vector<std::string> nodes_;
  bool has_many_nodes_;
  Straggler newest_;
  std::optional<Straggler> last_;     ///< the rank that was named, or may be soon
  int count_ = 0;                     ///< intervals in a row in which the others waited for it
  int calm_ = 0;                      ///< intervals in a row in which they did not, since it was named
  bool is_named_ = false;             ///< `last_` was told of
  std::vector<double> lost_seconds_;  ///< by rank, that the others have waited for it
  double all_seconds_ = 0;
};

}  // namespace fsdp
