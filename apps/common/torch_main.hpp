#pragma once
// Start-up code that programs on LibTorch share in addition to app_main.hpp.
#include "apps/common/app_main.hpp"
#include "lib/training/step/train_options.hpp"

namespace fsdp {

/// Options of every program that computes: device, timeouts, --json, --quiet.
void add_runtime_options(CLI::App& app, RuntimeOptions& options);

/// What --version prints: program, LibTorch, MPI, back ends.
std::string torch_version_text(const std::string& program);

/// run_job() with LibTorch's errors as sentences and MPI linked in.
int run_torch_job(const RuntimeOptions& options, const JobBody& body);

}  // namespace fsdp
