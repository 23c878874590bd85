#include "apps/common/torch_main.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lib/base/process/variables.hpp"
#include "lib/compute/kernels/kernels.hpp"
#include "lib/compute/ops/products/gemm.hpp"
#include "lib/compute/tensor/torch_compat.hpp"
#include "lib/engine/collectives/device_backend.hpp"
#include "lib/ranks/mpi_plugin.hpp"

extern "C" [[gnu::weak]] void __gcov_dump();  // of programs whose coverage is measured

namespace fsdp {
namespace {

/// Lets the process end without the destructors of shared libraries: LibTorch's take a quarter of the time of a start,
/// for memory that the kernel takes back anyway. Functions that are registered later, such as MPI's, still run.
void end_without_destructors() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which report at the end
  ::on_exit(
      [](int code, void*) {
        std::fflush(nullptr);
        if (__gcov_dump != nullptr) __gcov_dump();
        ::_exit(code);
      },
      nullptr);
#endif
}

/// Warns of variables whose value this processor cannot follow.
void tell_what_is_not_followed(const Logger& log) {
  const auto tell = [&](const std::string& variable, std::string_view used) {
    const auto wish = variable_value(variable);
    if (wish && *wish != used && log.rank() == 0)
      log.warning(fmt::format("{}={}: this processor cannot; {} is used", variable, *wish, used));
  };
  tell("FSDP_CPU_ISA", kernels::table().name);
  tell("FSDP_FLOAT32_GEMM", float32_gemm_name());
}

}  // namespace

void add_runtime_options(OptionTable& t, RuntimeOptions& options) {
  t.section("Where it runs");
  t.add_choice("device", kRequestedDevices, options.device,
               "device of the ranks: auto (a GPU if one can be used, else the CPU), cpu or cuda");
  add_job_options(t, options);
}

std::string torch_version_text(const std::string& program) {
  const std::string_view built = FSDP_BACK_ENDS;
  const bool lacks_cuda = built.find(", cuda") != std::string_view::npos && !has_cuda_backend();
  return fmt::format("{} {}\nLibTorch {}\n{}\ncpu kernels {}\nback ends: {}{}", program, FSDP_VERSION, TORCH_VERSION,
                     mpi_version_lines(), kernels::table().name, built,
                     lacks_cuda ? " (no libfsdp_cuda.so here: CPUs only)" : "");
}

ExitCode with_torch_errors(const std::function<ExitCode()>& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    throw RuntimeFailure(
        "out of memory; a smaller --batch-size, --activation-checkpointing, more ranks or a smaller model take less");
  } catch (const c10::Error& error) {
    throw RuntimeFailure(error.what_without_backtrace());
  }
}

int run_torch_job(const RuntimeOptions& options, const JobBody& body, const JobListener& listener,
                  const std::function<void(RankEnvironment&)>& started) {
  // Without this setting MKL may choose its code path by the alignment of the operands, and a resumed run would differ
  // in the last bits.
  ::setenv("MKL_CBWR", "AUTO", 0);
  end_without_destructors();
  const auto start_ranks = [&](const MpiOptions& mpi) {
    auto ranks = load_mpi(mpi);
    if (started) started(*ranks);
    return ranks;
  };
  const auto run = [&](ProcessGroup& world, const Logger& log, nlohmann::json& report) {
    tell_what_is_not_followed(log);
    return with_torch_errors([&] { return body(world, log, report); });
  };
  return run_job(options, start_ranks, run, listener);
}

}  // namespace fsdp
