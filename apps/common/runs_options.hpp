#pragma once
// fsdp-eval --runs: what runs have left in their folders, beside each other. Needs neither LibTorch's start nor ranks.
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "lib/base/job_options.hpp"

namespace fsdp {

struct RunsArguments {
  std::vector<std::string> runs;
  std::string plot_file;
  std::string sort_column;
  bool pool = false, markdown = false, watch = false;
};

void add_runs_options(CLI::App& app, RunsArguments& arguments);

/// \throws UsageError for an option that needs --runs
void require_runs(const CLI::App& app);

/// Once per job, whatever started it. \return the exit code
int show_runs(const RunsArguments& arguments, const JobOptions& options);

}  // namespace fsdp
