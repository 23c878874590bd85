#pragma once
// Start-up code that programs on LibTorch share in addition to app_main.hpp.
#include "apps/common/app_main.hpp"
#include "lib/training/step/train_options.hpp"

namespace fsdp {

/// Adds the options that every program that computes has: device, timeouts, --json, --quiet.
void add_runtime_options(OptionTable& table, RuntimeOptions& options);

/// Returns the text of --version: program, LibTorch, MPI and device back ends.
std::string torch_version_text(const std::string& program);

/// Calls run_job() with MPI linked in and turns LibTorch's errors into readable messages.
int run_torch_job(const RuntimeOptions& options, const JobBody& body);

}  // namespace fsdp
