#pragma once
// Start-up code that programs on LibTorch share in addition to app_main.hpp.
#include "apps/common/app_main.hpp"
#include "lib/training/step/train_options.hpp"

namespace fsdp {

/// Adds the options that every program that computes has: device, timeouts, --json, --quiet.
void add_runtime_options(OptionTable& table, RuntimeOptions& options);

/// Returns the text of --version: program, LibTorch, MPI and device back ends.
std::string torch_version_text(const std::string& program);

/// Runs `body` and turns LibTorch's errors and a lack of memory into errors with readable messages.
ExitCode with_torch_errors(const std::function<ExitCode()>& body);

/// Calls run_job() with MPI linked in, and `body` with_torch_errors().
/// \param listener  as in run_job()
/// \param started   receives the connection to the other ranks before `body` runs, if there are any
int run_torch_job(const RuntimeOptions& options, const JobBody& body, const JobListener& listener = {},
                  const std::function<void(RankEnvironment&)>& started = {});

}  // namespace fsdp
