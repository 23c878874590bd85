#pragma once
// fsdp-eval --runs compares runs by the files in their folders. It needs neither LibTorch nor ranks.
#include <string>
#include <vector>

#include "apps/common/option_table.hpp"
#include "lib/base/messages/job_options.hpp"

namespace fsdp {

struct RunsArguments {
  std::vector<std::string> runs;
  std::string plot_file, html_file;
  std::string sort_column;
  std::string why;  ///< folder of the run
  bool pool = false, markdown = false, watch = false;
};

void add_runs_options(OptionTable& table, RunsArguments& arguments);

/// \param has_table  another table is printed, which may be Markdown. \throws UsageError for an option that needs
/// --runs
void require_runs(const CLI::App& app, bool has_table = false);

/// Prints why a run does not go on. \return answer_no if it is stuck
int show_why(const RunsArguments& arguments, const JobOptions& options);

/// Prints the comparison once per job, with or without a launcher. \return the exit code
int show_runs(const RunsArguments& arguments, const JobOptions& options);

}  // namespace fsdp
