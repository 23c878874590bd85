#include "apps/common/runs_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>

#include "apps/common/app_main.hpp"
#include "lib/base/files/output_file.hpp"
#include "lib/base/process/answer_within.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/reports/runs/job_flights.hpp"
#include "lib/reports/runs/run_summary.hpp"
#include "lib/reports/runs/watch.hpp"

namespace fsdp {
namespace {

constexpr double kPatience_seconds = 5;  // in which ranks usually wait for one another
constexpr double kOldRecord_seconds = 20;

}  // namespace

void add_runs_options(OptionTable& t, RunsArguments& a) {
  t.section("Runs");
  t.add("runs", a.runs,
        "folders of runs of fsdp-finetune, or a folder that holds several, to compare by the files in them instead of "
        "evaluating a checkpoint; the runs may still be running",
        {.path = PathKind::folder})
      ->expected(1, -1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  t.add("pool", a.pool, "with --runs: join runs with the same settings, with all their steps");
  t.add("plot", a.plot_file, "with --runs: file for a picture of losses and speeds, .svg", {.path = PathKind::file});
  t.add("html", a.html_file,
        "with --runs: file for a report that a browser opens: curves to zoom into, tables, samples, checkpoints, "
        "failures; --watch renews it",
        {.path = PathKind::file});
  t.add("sort", a.sort_column,
        "with --runs: column of the table by which the runs are sorted, the best first: last-loss, tokens/s, lr, ...",
        {.suggestions = "last-loss, validation, tokens/s, s/step, memory, lr, steps"})
      ->type_name("COLUMN");
  t.add("markdown", a.markdown, "with --runs and --compare: print the table as Markdown, as that of --tasks is");
  t.add("watch", a.watch,
        "with --runs: show progress, losses, speed and memory of each run, on a terminal until the runs end");
  t.add("why", a.why,
        "folder of a run of fsdp-finetune that does not go on: says which rank the others wait for, in which "
        "collective, and what that rank does instead; exit with 3 if the run is stuck",
        {.path = PathKind::folder});
}

void require_runs(const CLI::App& app, bool has_table) {
  for (const std::string name : {"--pool", "--plot", "--html", "--sort", "--watch", "--markdown"}) {
    if (app.get_option(name)->count() > 0 && !(has_table && name == "--markdown"))
      throw UsageError(std::string(name) + " goes with --runs");
  }
}

int show_why(const RunsArguments& a, const JobOptions& options) {
  if (!speaks_for_the_job()) return static_cast<int>(ExitCode::ok);
  auto answer = ExitCode::ok;
  const int code = run_alone([&] {
    const auto is_there = answer_within(kLookAtFolder, [folder = std::filesystem::path(a.why)] {
      std::error_code error;
      return std::filesystem::is_directory(folder, error);
    });
    if (!is_there.value_or(true)) throw MissingInput(fmt::format("{}: there is no such folder", a.why));
    const auto flights = flights_of_run(a.why, FlightMap::kEvents);
    if (flights.empty()) {
      throw MissingInput(fmt::format(
          "{}: no rank has left a record here: the run has ended in order, or it is no run of fsdp-finetune", a.why));
    }
    const auto verdict = verdict_of(flights, kPatience_seconds);
    if (verdict.is_stuck) answer = ExitCode::answer_no;
    if (options.json) return print_on_stdout(stuck_text(verdict, flights));
    const auto now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    double age = 0, least_age = std::numeric_limits<double>::infinity();
    for (const auto& flight : flights) {
      age = std::max(age, now - flight.seen);
      least_age = std::min(least_age, now - flight.seen);
    }
    print_on_stdout(fmt::format("{}\n", verdict.text));
    if (least_age > kOldRecord_seconds) {
      print_on_stdout(fmt::format(
          "No rank has written a record for {}: the processes have ended, or the file system of the run takes nothing "
          "that they write. Look also on a node of the job.\n",
          format_duration(least_age)));
    } else if (age > kOldRecord_seconds) {
      print_on_stdout(
          fmt::format("The oldest record of a rank is {} old: look also on that rank's node.\n", format_duration(age)));
    }
  });
  return code != 0 ? code : static_cast<int>(answer);
}

int show_runs(const RunsArguments& a, const JobOptions& options) {
  if (!speaks_for_the_job()) return static_cast<int>(ExitCode::ok);
  return run_alone([&] {
    check_plot_file(a.plot_file);
    if (a.watch && (options.json || a.markdown || a.pool || !a.plot_file.empty() || !a.sort_column.empty()))
      throw UsageError(
          "--watch shows runs as they are now: it goes without --json, --markdown, --pool, --plot and --sort");
    if (options.json && a.markdown) throw UsageError("--json and --markdown contradict each other: give one of them");
    if (a.watch) return watch_runs(a.runs, a.html_file);
    auto comparison = compare_runs(find_runs(a.runs), a.pool);
    if (!a.sort_column.empty()) sort_runs(comparison, a.sort_column);
    if (!a.plot_file.empty()) write_output(a.plot_file, runs_picture_svg(picture_of(comparison)));
    if (!a.html_file.empty()) write_output(a.html_file, run_comparison_to_html(comparison));
    if (options.json) {
      auto report = run_comparison_to_json(comparison);
      if (!a.plot_file.empty()) report["plot"] = a.plot_file;
      if (!a.html_file.empty()) report["html"] = a.html_file;
      print_on_stdout(printable_json(report, 1) + "\n");
    } else {
      print_on_stdout(a.markdown ? run_comparison_to_markdown(comparison) : run_comparison_to_text(comparison));
    }
  });
}

}  // namespace fsdp
