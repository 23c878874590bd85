#include "apps/common/torch_main.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>

#include "lib/compute/kernels/kernels.hpp"
#include "lib/ranks/mpi_environment.hpp"

namespace fsdp {

void add_runtime_options(CLI::App& app, RuntimeOptions& options) {
  const auto group = "Where it runs";
  add_choice(app, "--device", kDeviceWishes, options.device, "auto (a usable GPU, else the CPU), cpu or cuda")
      ->default_str("auto")
      ->group(group);
  add_job_options(app, options, group);
}

std::string torch_version_text(const std::string& program) {
  return fmt::format("{} {}\nLibTorch {}\nMPI {}\ncpu kernels {}\nback ends: {}", program, FSDP_VERSION, TORCH_VERSION,
                     MpiEnvironment::library_version(), kernels::table().name, FSDP_BACK_ENDS);
}

int run_torch_job(const RuntimeOptions& options, const JobBody& body) {
  // Without this setting MKL may choose its code path by the alignment of the operands, and a resumed run would differ
  // in the last bits.
  ::setenv("MKL_CBWR", "AUTO", 0);
  const auto start_ranks = [](const MpiOptions& mpi) { return std::make_unique<MpiEnvironment>(mpi); };
  return run_job(options, start_ranks, [&](ProcessGroup& world, const Logger& log, nlohmann::json& report) {
    try {
      return body(world, log, report);
    } catch (const std::bad_alloc&) {
      throw RuntimeFailure(
          "out of memory; a smaller --batch-size, --activation-checkpointing, more ranks or a smaller model take less");
    } catch (const c10::Error& error) {
      throw RuntimeFailure(error.what_without_backtrace());
    }
  });
}

}  // namespace fsdp
