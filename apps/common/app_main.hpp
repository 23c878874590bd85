#pragma once
// Start-up code that all programs share and that does not need LibTorch: how options are spelt, chosen and described,
// config files, exit codes, and the end of a job that failed.
#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lib/base/error.hpp"
#include "lib/base/job_options.hpp"
#include "lib/base/log.hpp"
#include "lib/base/named_values.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/ranks/rank_environment.hpp"

namespace fsdp {

/// Returns the option names for CLI11: "--batch-size,--batch_size" for "batch-size". The underscore spelling is
/// accepted because the tutorials write it.
std::string spellings(const std::string& name);

/// Tells --describe-options what an option is chosen from: "block, none, size:N (N parameters per unit)". The option's
/// own function parses and refuses.
CLI::Option* name_choices(CLI::Option* option, const std::string& choices);

/// Adds an option whose value is one of the names in a table (named_values.hpp), which must outlive `app`.
template <typename Table, typename Value>
CLI::Option* add_choice(CLI::App& app, const std::string& names, const Table& table, Value& value,
                        const std::string& help) {
  const auto parse = [&table, &value, name = names.substr(0, names.find(','))](const std::string& text) {
    value = parse_value(table, text, name);
  };
  return name_choices(app.add_option_function<std::string>(names, parse, help), choices_of(table));
}

// For the manual pages and bash completion that cmake/manual/ makes (describe_options.cpp).

/// True for `PROGRAM --describe-options` with no other argument. The build uses this option, so --help does not list
/// it.
bool asks_for_description(int argc, char** argv);

/// Returns JSON with the program's name, description, usage and footer, and its options in the order of --help: names,
/// kind of value, number of values, default, group, description and choices. Call after all
/// options have been added.
std::string describe_options(CLI::App& app);

/// True on the first rank only, as the launcher's environment variables say, so it can be asked before MPI starts. Help
/// and messages about options are printed once per job.
bool speaks_for_the_job();

/// Lets the last value of an option that is given twice win, because job scripts put the user's arguments after their
/// own. Also sets how config files are read. Call before adding options.
void let_later_options_win(CLI::App& app);

/// Adds timeouts, --json and --quiet to the section `group` of the help.
void add_job_options(CLI::App& app, JobOptions& options, const std::string& group);

/// Writes all of `text` to stdout, flushes, and checks that earlier output was written, too. \throws IoError
void print_on_stdout(const std::string& text);

/// Runs `body` before there are ranks and prints its error once per job. \return the exit code
int run_alone(const std::function<void()>& body);

/// Implements --print-config: writes the options as a config file to stdout. \return the exit code
int print_config(const CLI::App& app);

/// Parses the command line. Prints help, version or a usage error once per job, not once per rank.
/// \return an exit code when the program should end now, -1 to go on
int parse(CLI::App& app, int argc, char** argv);

/// Checks that all ranks were started with the same options: ranks with different options (from a --config that is not
/// the same file on all nodes, for example) would wait for each other forever. Collective. \throws UsageError
void require_same_options(ProcessGroup& world, const CLI::App& app);

using JobBody = std::function<ExitCode(ProcessGroup& world, const Logger& log, nlohmann::json& report)>;
using StartRanks = std::function<std::unique_ptr<RankEnvironment>(const MpiOptions&)>;

/// Runs `body` on the job's ranks and turns exceptions into messages and exit codes.
/// Ends the whole job when some ranks fail and others do not.
/// \param start_ranks  how MPI starts; called only when a launcher started this process
int run_job(const JobOptions& options, const StartRanks& start_ranks, const JobBody& body);

}  // namespace fsdp
