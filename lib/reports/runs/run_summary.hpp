#pragma once
// Statistics of a run, and the comparison of several runs.
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/reports/plots/loss_curve.hpp"
#include "lib/reports/runs/read_run_files.hpp"

namespace fsdp {

/// Median, quartiles and extremes of a sample; all NaN when count is 0.
struct Spread {
  std::int64_t count = 0;
  double median = kNoNumber, low_quartile = kNoNumber, high_quartile = kNoNumber;
  double lowest = kNoNumber, highest = kNoNumber;

  /// Half of the interquartile range.
  double half_width() const { return (high_quartile - low_quartile) / 2; }
};
/// Computes the spread. Quartiles are interpolated linearly, as in numpy.percentile.
Spread spread_of(std::vector<double> sample);

/// The values of a step from which speed is computed. Kept small, because runs of a million steps are held in memory.
struct SpeedSample {
  double tokens_per_second = 0, seconds = 0;
  double received_bytes = -1, mfu = kNoNumber;
};

/// Selects the steps from which speed is computed. Excludes the first two steps of a job (caches, allocator and
/// optimizer states are being created), steps during which a checkpoint was written, and steps right after a
/// validation. If fewer than three remain, all but the first of the job count; if none remains, all count.
std::vector<SpeedSample> steps_for_speed(const std::vector<StepLine>& steps);

/// A run's results on one validation set, or by one metric of chess games or of a task.
struct ValidationSummary {
  std::string set;      ///< as in EvalLine
  bool is_loss = true;  ///< likewise
  bool higher_is_better = false;
  double last = kNoNumber, best = kNoNumber;
  std::int64_t best_step = 0;
};

/// A run, or several pooled runs with equal settings.
struct RunSummary {
  RunFiles files;     ///< files of the first run
  std::string label;  ///< label that distinguishes the run from the others
  int runs = 1;
  std::vector<RunSummary> unfinished;    ///< of pooled runs those that are not done, each by itself
  std::vector<SpeedSample> speed_steps;  ///< steps of all pooled runs
  Spread tokens_per_second, step_seconds, received_bytes;
  double mfu = kNoNumber;  ///< median
  double first_loss = kNoNumber, last_loss = kNoNumber;
  std::vector<ValidationSummary> validation;  ///< in the order of validation
};

struct RunComparison {
  std::vector<RunSummary> runs;       ///< the first run is the baseline
  std::vector<std::string> differ;    ///< settings that differ between runs, the most important first
  std::vector<std::size_t> in_order;  ///< display order, as indices of `runs`
};

/// \param pool  merge runs whose settings are all equal
RunComparison compare_runs(const std::vector<std::filesystem::path>& directories, bool pool);
RunComparison compare_runs(std::vector<RunFiles> runs, bool pool);

/// Lists the runs by a column of the table, by its title in any case, blanks as '-'; the best first: the lowest loss,
/// the highest speed. What has nothing there comes last. \throws RequestError naming the columns
void sort_runs(RunComparison& comparison, const std::string& column);

/// True for settings that affect the training itself.
bool is_about_training(const std::string& setting);

/// The value shown for a setting of a run that left neither job.json nor a checkpoint.
inline constexpr const char* kUnknownSetting = "?";
/// Value of a setting, or its default ("-" for none) when it was not given; kUnknownSetting when the run has no
/// settings.
std::string setting_of(const RunFiles& run, const std::string& name);

/// Names the best run in validation, then compares each run with the first in sentences: speed, memory, communication,
/// loss. Differences within both spreads or below one percent count as none.
std::vector<std::string> comparison_sentences(const RunComparison& comparison);

/// The best run of a comparison, and the one after it. Points into the comparison.
struct BestRun {
  const RunSummary* run = nullptr;
  const RunSummary* next = nullptr;  ///< null: no other has such a loss
  bool by_validation = true;         ///< false: by the last loss in training
  std::string set = {};              ///< of the validation; "": the only one
  double loss = kNoNumber, next_loss = kNoNumber;
  std::int64_t step = 0;  ///< at which the run had its loss
};
/// The run with the lowest loss in validation; where none has validated, with the lowest last loss in training. Nothing
/// where no run has a loss, or where they were validated on different data.
/// \param last_steps  by run the last step that counts; empty: all steps count
std::optional<BestRun> best_run(const RunComparison& comparison, const std::vector<std::int64_t>& last_steps = {});
/// "Best validation: a, 2.1000 at step 40; next b, 0.1000 higher."
std::string best_run_sentence(const BestRun& best);
/// Names the best run of the length that all runs have, where they were trained for different ones: the shortest of
/// those that are done. "At equal length, 40 steps: a, 2.1000 at step 40; next b, 0.1000 higher."; "" for equal
/// lengths.
std::string equal_length_sentence(const RunComparison& comparison);

/// A column of the table of runs.
struct TableColumn {
  std::string title;
  std::function<std::string(const RunSummary&)> cell;
  /// value of the cell as a number; empty if the column contains text
  std::function<double(const RunSummary&)> number;
  bool high_is_good = false;
  bool is_setting = false;
};
/// The columns in order of importance: state and losses, settings that differ, speed and memory. Columns without any
/// value are omitted.
std::vector<TableColumn> columns_of(const RunComparison& comparison);

/// The loss on the set that --keep-best names, or else on the first set.
ValidationSummary deciding_loss(const RunSummary& run);

/// Formats a count as the programs do: 1.2 k, 16.1 M, 7.0 B.
std::string parameters_text(double n);

/// Formats a count: "1,234", or "-" when it is not finite or too large.
std::string count_text(double n);

nlohmann::json run_comparison_to_json(const RunComparison& comparison);
/// A table for people, followed by the sentences.
std::string run_comparison_to_text(const RunComparison& comparison);
std::string run_comparison_to_markdown(const RunComparison& comparison);

/// A page for a browser, in one file that needs no network: curves, tables, samples, checkpoints, problems.
/// \param renew_seconds  how often the page reloads itself, for a file that is rewritten; 0: never
std::string run_comparison_to_html(const RunComparison& comparison, int renew_seconds = 0);

/// A chart of losses over steps (over tokens if steps differ in size) and of speeds.
RunsPicture picture_of(const RunComparison& comparison);

}  // namespace fsdp
