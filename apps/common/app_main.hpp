#pragma once
// What all mains share, free of LibTorch: option spellings, config files, exit codes, the end of a job that failed.
#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lib/base/error.hpp"
#include "lib/base/job_options.hpp"
#include "lib/base/log.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/ranks/rank_environment.hpp"

namespace fsdp {

/// "--batch-size,--batch_size" for "batch-size": the tutorials write underscores.
std::string spellings(const std::string& name);

/// False on all ranks but the first, known before MPI is: help and messages about options are printed once per job.
bool speaks_for_the_job();

/// An option given twice takes its last value: job scripts put the user's arguments after their own. Also sets how
/// config files are read. Call before adding options.
void let_later_options_win(CLI::App& app);

/// Timeouts, --json and --quiet, for the help's section `group`.
void add_job_options(CLI::App& app, JobOptions& options, const std::string& group);

/// Writes all of `text`, now, and looks at what the program wrote before. \throws IoError
void print_on_stdout(const std::string& text);

/// What a program does before there are ranks: `body`'s error as a message, once per job. \return the exit code
int run_alone(const std::function<void()>& body);

/// --print-config: the options as a config file on stdout. \return the exit code
int print_config(const CLI::App& app);

/// Parses; prints help, version or the usage error (once per job, not once per rank).
/// \return an exit code when the program should end now, -1 to go on
int parse(CLI::App& app, int argc, char** argv);

/// Ranks started with different options (a --config that not all can read alike, say) would wait for each other for
/// ever. Collective. \throws UsageError
void require_same_options(ProcessGroup& world, const CLI::App& app);

using JobBody = std::function<ExitCode(ProcessGroup& world, const Logger& log, nlohmann::json& report)>;
using StartRanks = std::function<std::unique_ptr<RankEnvironment>(const MpiOptions&)>;

/// Runs `body` on the job's ranks and turns exceptions into messages and exit codes. When some ranks fail and others do
/// not, ends the whole job.
/// \param start_ranks  how MPI starts; called only when a launcher started this process
int run_job(const JobOptions& options, const StartRanks& start_ranks, const JobBody& body);

}  // namespace fsdp
