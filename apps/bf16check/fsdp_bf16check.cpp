// fsdp-bf16check: says whether bf16 is native, emulated or absent on every rank of this job, and why.
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/bf16check/bf16_check.hpp"
#include "apps/bf16check/launch_check.hpp"
#include "apps/common/torch_main.hpp"
#include "lib/base/process/signal_thread.hpp"
#include "lib/bf16/fact_source.hpp"
#include "lib/ranks/mpi_plugin.hpp"

namespace fsdp {
/// A program for tests links a definition that is not weak, which wins.
[[gnu::weak]] std::unique_ptr<Bf16FactSource> program_bf16_facts() { return make_bf16_fact_source(); }
}  // namespace fsdp

int main(int argc, char** argv) {
  const fsdp::SignalThread signals;
  fsdp::OptionTable app{
      "Reports for every rank of a job whether bf16 is native, emulated or absent, and why: device, versions,\n"
      "measured matrix multiplications, and a checked all-reduce with its bandwidth. Takes a few seconds.\n"
      "Start it in the same way as the training.\n"
      "Exit codes: 0 native on all ranks, 1 failed, 2 usage, 3 emulated or absent on some rank, or with --launch\n"
      "something needs a change.",
      "fsdp-bf16check"};
  fsdp::RuntimeOptions runtime;
  runtime.init_timeout_seconds = 60;
  runtime.collective_timeout_seconds = 60;
  fsdp::Bf16CheckOptions options;
  app.add("size-mb", options.size_mb,
          "MiB of the largest tensor to all-reduce; a slow network gets a smaller one; 0: 64 on GPUs, 16 on CPUs",
          {.unit = "MiB"});
  app.add("quick", options.quick, "measure for a quarter of the time");
  app.add("repeat", options.repeat,
          "checks of products and of what arrives in collectives, each with other numbers: an unreliable node shows in "
          "some of them only",
          {.range = {.from = 1, .to = 1e6}});
  app.add("exclude-file", options.exclude_file,
          "file for the names of the bad hosts, in the form of sbatch --exclude; empty if there are none",
          {.path = fsdp::PathKind::file});
  bool launch = false;
  fsdp::LaunchCheckOptions launch_options;
  app.add("launch", launch,
          "look at how the ranks were started instead: MPI, cores, memory, GPUs of each rank, and the folder of runs");
  app.add("run-folder", launch_options.run_folder, "with --launch: folder of runs and checkpoints",
          {.path = fsdp::PathKind::folder});
  app.add(
      "await-signal", launch_options.await_signal_seconds,
      "with --launch: wait so long for a signal, and tell which ranks it reaches; exit code 85 if all; 0: do not wait",
      {.range = {.from = 0, .to = 86400}, .unit = "seconds"});
  fsdp::add_runtime_options(app, runtime);
  app.add_config("file to read options from");
  app.set_version_flag("--version", [] { return fsdp::torch_version_text("fsdp-bf16check"); });
  if (const int code = fsdp::parse(app, argc, argv); code >= 0) return code;
  options.device = runtime.device;
  options.mpi_library = fsdp::loaded_mpi_version();
  launch_options.device = runtime.device;
  launch_options.mpi_library = options.mpi_library;
  return fsdp::run_torch_job(runtime, [&](fsdp::ProcessGroup& world, const fsdp::Logger& log, nlohmann::json& report) {
    fsdp::require_same_options(world, app);
    const auto source = fsdp::program_bf16_facts();
    if (launch) {
      const auto result = fsdp::run_launch_check(world, *source, launch_options, log, report);
      if (world.rank() == 0 && !runtime.json) std::cout << result.table << std::flush;
      return result.exit_code;
    }
    const auto result = fsdp::run_bf16_check(world, *source, options, log, report);
    if (world.rank() == 0 && !runtime.json) std::cout << result.table << std::flush;
    return result.exit_code;
  });
}
