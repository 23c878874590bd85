#pragma once
// Start-up code that all programs share and that does not need LibTorch: how options are parsed, exit codes,
// and the end of a job that failed.
#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/common/option_table.hpp"
#include "lib/base/messages/job_options.hpp"
#include "lib/base/messages/log.hpp"
#include "lib/base/types/error.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/ranks/rank_environment.hpp"

namespace fsdp {

/// True on the first rank only, as the launcher's environment variables say, so it can be asked before MPI starts. Help
/// and messages about options are printed once per job.
bool speaks_for_the_job();

/// Adds timeouts, --json and --quiet.
void add_job_options(OptionTable& table, JobOptions& options);

/// Writes all of `text` to stdout, flushes, and checks that earlier output was written, too. \throws IoError
void print_on_stdout(const std::string& text);

/// Checks the file of --plot; empty: none. \throws UsageError for another picture than SVG, with how to get one
void check_plot_file(const std::string& file);

/// Runs `body` before there are ranks and prints its error once per job. \return the exit code
int run_alone(const std::function<void()>& body);

/// Returns the long option of `app` whose name is closest to `name` ("--lerning-rate" or "lerning-rate"), without
/// leading dashes; "" when none is close.
std::string nearest_option(const CLI::App& app, const std::string& name);

/// Implements --print-config: writes the options as a config file to stdout. \return the exit code
int print_config(const CLI::App& app);

/// Parses the command line. Prints help, version or a usage error once per job, not once per rank; for
/// `--describe-options` alone, which the build of manual pages uses and --help does not list, OptionTable::describe().
/// \return an exit code when the program should end now, -1 to go on
int parse(OptionTable& table, int argc, char** argv);

/// Checks that all ranks were started with the same options: ranks with different options (from a --config that is not
/// the same file on all nodes, for example) would wait for each other forever. Collective. \throws UsageError
void require_same_options(ProcessGroup& world, const CLI::App& app);

/// \return an exit code; `report` is what --json prints, null: nothing
using JobBody = std::function<ExitCode(ProcessGroup& world, const Logger& log, nlohmann::json& report)>;
using StartRanks = std::function<std::unique_ptr<RankEnvironment>(const MpiOptions&)>;

/// Time in which the other ranks fail, too, where all fail alike.
inline constexpr std::chrono::milliseconds kAlikePatience{1500};

/// Hears how a job has ended; may take some time.
struct JobListener {
  /// \param failure  the error's message; "" when there was none
  std::function<void(int exit_code, const std::string& failure, const Logger& log)> ended;
  std::chrono::seconds longest{0};  ///< time that it takes at the most
};

/// Runs `body` on the job's ranks and turns exceptions into messages and exit codes.
/// Ends the whole job when some ranks fail and others do not.
/// \param start_ranks  how MPI starts; called only when a launcher started this process
/// \param listener     called on rank 0 when the job has ended, and on a rank that failed alone before it ends the job
int run_job(const JobOptions& options, const StartRanks& start_ranks, const JobBody& body,
            const JobListener& listener = {});

}  // namespace fsdp
