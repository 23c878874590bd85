#pragma once
// What the mains share: option spellings, exit codes, the end of a job that failed.
#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lib/base/error.hpp"
#include "lib/base/log.hpp"
#include "lib/comm/process_group.hpp"
#include "lib/run/train_options.hpp"

namespace fsdp {

/// "--batch-size,--batch_size" for "batch-size": the seeds write underscores.
std::string spellings(const std::string& name);

/// False on all ranks but the first, known before MPI is: help and messages about options are printed once per job.
bool speaks_for_the_job();

/// An option given twice takes its last value: job scripts put the user's arguments after their own. Also sets how
/// config files are read. Call before adding options.
void let_later_options_win(CLI::App& app);

/// Options of every program that computes: device, timeouts, --json, --trace.
void add_runtime_options(CLI::App& app, RuntimeOptions& options);

/// What --version prints: program, LibTorch, MPI, back ends.
std::string version_text(const std::string& program);

/// Parses; prints help, version or the usage error (once per job, not once per rank).
/// \return an exit code when the program should end now, -1 to go on
int parse(CLI::App& app, int argc, char** argv);

/// Ranks started with different options (a --config that not all can read alike, say) would wait for each other for
/// ever. Collective. \throws UsageError
void require_same_options(ProcessGroup& world, const CLI::App& app);

/// Runs `body` on the job's ranks (MPI only when a launcher started this process) and turns exceptions into messages
/// and exit codes. When some ranks fail and others do not, ends the whole job.
int run_job(const RuntimeOptions& options,
            const std::function<ExitCode(ProcessGroup& world, const Logger& log, nlohmann::json& report)>& body);

}  // namespace fsdp
