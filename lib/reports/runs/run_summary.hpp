#pragma once
// The figures of a run, and what is told of several beside each other.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/reports/runs/read_run_files.hpp"

namespace fsdp {

/// Median, quartiles and ends of a sample; count 0: all NaN.
struct Spread {
  std::int64_t count = 0;
  double median = kNoNumber, low_quartile = kNoNumber, high_quartile = kNoNumber;
  double lowest = kNoNumber, highest = kNoNumber;

  /// Half of what lies between the quartiles, inside which half of the sample is.
  double half_width() const { return (high_quartile - low_quartile) / 2; }
};
/// Quartiles between neighbours are interpolated linearly, as numpy.percentile does.
Spread spread_of(std::vector<double> sample);

/// What speed is told of, of a step: runs of a million steps are held while they are watched.
struct SpeedSample {
  double tokens_per_second = 0, seconds = 0;
  double received_bytes = -1, mfu = kNoNumber;
};

/// Steps that speed is told of: not the first two of a job (caches, the allocator and moments come into being), none
/// during which a checkpoint was written, none right after a validation. Where fewer than three are left, all but the
/// job's first; where none is, all.
std::vector<SpeedSample> steps_for_speed(const std::vector<StepLine>& steps);

/// What a run came to on one set of validation data, or by one metric of games.
struct ValidationSummary {
  std::string set;      ///< as in EvalLine
  bool is_loss = true;  ///< the lower the better
  double last = kNoNumber, best = kNoNumber;
  std::int64_t best_step = 0;
};

/// A run, or several with the same settings.
struct RunSummary {
  RunFiles files;     ///< of the first
  std::string label;  ///< what tells it from the others
  int runs = 1;
  std::vector<SpeedSample> speed_steps;  ///< of all of them
  Spread tokens_per_second, step_seconds, received_bytes;
  double mfu = kNoNumber;  ///< median
  double first_loss = kNoNumber, last_loss = kNoNumber;
  std::vector<ValidationSummary> validation;  ///< in the order in which they were validated
};

struct RunComparison {
  std::vector<RunSummary> runs;       ///< the others are held against the first
  std::vector<std::string> differ;    ///< settings that are not alike in all runs, those that matter most first
  std::vector<std::size_t> in_order;  ///< how the runs are listed, as indices of `runs`
};

/// \param pool  runs whose settings are all alike become one
RunComparison compare_runs(const std::vector<std::filesystem::path>& directories, bool pool);
RunComparison compare_runs(std::vector<RunFiles> runs, bool pool);

/// Lists the runs by a column of the table, by its title in any case, blanks as '-'; the best first: the lowest loss,
/// the highest speed. What has nothing there comes last. \throws UsageError naming the columns
void sort_runs(RunComparison& comparison, const std::string& column);

/// What a setting is called where nothing was given.
std::string setting_of(const RunFiles& run, const std::string& name);

/// Each run against the first, in words: speed, memory, communication, loss. What differs by no more than both spreads
/// and a hundredth is said to be alike.
std::vector<std::string> comparison_sentences(const RunComparison& comparison);

/// "1,234"; "-" where it is none that could be shown.
std::string count_text(double n);

nlohmann::json run_comparison_to_json(const RunComparison& comparison);
/// A table for people, its sentences below.
std::string run_comparison_to_text(const RunComparison& comparison);
std::string run_comparison_to_markdown(const RunComparison& comparison);

/// Losses over steps (over tokens where steps are not equally large) beside speeds. \param svg  else PNG
std::string run_comparison_picture(const RunComparison& comparison, bool svg);

}  // namespace fsdp
