#pragma once
// Jobs of fsdp-finetune on thread ranks, by their command lines: milliseconds instead of a start of processes.
#include "tests/support/reproducible_products.hpp"
#include "tests/support/torch_doctest.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "apps/common/app_main.hpp"
#include "apps/finetune/finetune_job.hpp"
#include "lib/ranks/thread_group.hpp"
#include "tests/support/captured_stderr.hpp"
#include "tests/support/temp_files.hpp"

namespace fsdp::test {

struct FinetuneOutcome {
  ExitCode code = ExitCode::ok;
  std::string error;      ///< of a job that failed
  nlohmann::json report;  ///< what --json prints
  std::string log;        ///< standard error of all ranks, debug lines included
  /// \return the actions of RunExecutor, in order: "validate 2", "save 4", "latest 4", ...
  std::vector<std::string> actions() const {
    std::vector<std::string> found;
    std::istringstream lines(log);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("action    ")) found.push_back(line.substr(10));
    }
    return found;
  }
};

/// Parses the command line on every rank, as the program does, and runs the job. \param folder  for temporary files
inline FinetuneOutcome finetune(const std::filesystem::path& folder, int ranks,
                                const std::vector<std::string>& arguments) {
  FinetuneOutcome outcome;
  CapturedStderr captured(folder / "stderr.txt");
  try {
    run_thread_ranks(ranks, ranks, [&](ProcessGroup& world) {
      CLI::App app("", "fsdp-finetune");
      let_later_options_win(app);
      FinetuneArguments parsed;
      add_finetune_options(app, parsed);
      std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
      app.parse(reversed);
      normalize_finetune_options(app, parsed);
      nlohmann::json report;
      const Logger log(world.rank(), LogLevel::debug);
      const auto code = run_finetune_job(app, parsed, world, log, report);
      if (world.rank() != 0) return;
      outcome.code = code;
      outcome.report = std::move(report);
    });
  } catch (const Error& error) {
    outcome.code = error.code();
    outcome.error = error.what();
  }
  outcome.log = captured.text();
  return outcome;
}

}  // namespace fsdp::test
