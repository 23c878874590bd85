#include "lib/base/process/variables.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

constexpr std::string_view kPrefix = "FSDP_";

using enum VariableReader;

constexpr std::array kVariables = std::to_array<Variable>({
    {"FSDP_CPU_ISA", programs,
     "instruction set of the CPU kernels; portable is NEON on AArch64. Default: the best one of the processor, which "
     "must have the named one",
     "portable, avx2, avx512, sve"},
    {.name = "FSDP_FLOAT32_GEMM",
     .reader = programs,
     .meaning = "library for float32 matrix products on the CPU. Default: oneDNN on processors with AVX-512 that are "
                "not Intel's, where ATen's MKL uses AVX2 only, else ATen. On x86, onednn needs AVX-512, also in "
                "ONEDNN_MAX_CPU_ISA",
     .choices = "aten, onednn",
     .page = "design.md#the-model-and-its-cpu-kernels"},
    {.name = "FSDP_BF16_GEMM",
     .reader = programs,
     .meaning = "products of bf16 and fp16 matrices on the CPU; widened computes them in float32. Default: native if "
                "the processor does them at full speed",
     .choices = "native, widened",
     .page = "design.md#the-model-and-its-cpu-kernels"},
    {.name = "FSDP_CUDA_KERNELS",
     .reader = programs,
     .meaning = "off: on GPUs, PyTorch's operators instead of the project's kernels, for comparison",
     .choices = "on, off",
     .page = "design-cuda.md#kernels"},
    {.name = "FSDP_CUDA_ATTENTION",
     .reader = programs,
     .meaning = "kernel of attention on GPUs, for all shapes that it supports; for comparison, or where one fails",
     .choices = "cudnn, flash, efficient, blocks",
     .page = "design-cuda.md#attention"},
    {.name = "FSDP_OFFLOAD_IO",
     .reader = programs,
     .meaning = "threads: --offload-optimizer nvme:DIR without io_uring",
     .choices = "threads",
     .page = "offload.md"},
    {.name = "FSDP_CPU_FLOPS",
     .reader = programs,
     .meaning = "a number: peak of a rank's processor in FLOP/s, for the percentage in the log and for predicted "
                "times. Default: "
                "each start measures it, which takes a sixth of a second",
     .is_number = true},
    {.name = "FSDP_LOAD_MPI",
     .reader = programs,
     .meaning =
         "the MPI to start with: own, the one of the build, openmpi, or standard, MPI 5's standard ABI. Default: the "
         "one of the launcher",
     .choices = "own, openmpi, standard",
     .page = "clusters.md#which-mpi"},
    {"FSDP_EXIT_FILE", programs,
     "file into which rank 0 writes the job's exit code at its end: launchers may return another one, as mpirun of "
     "Open MPI "
     "does after a signal. Job scripts set it"},
    {"FSDP_STAGED", programs,
     "folder with copies of the data, which job scripts set for STAGE: checkpoints name the files without it"},
    // fsdp-finetune sets these for the command of --on-event, which may start one of the programs.
    {"FSDP_EVENT", commands, "start, done, stopped (early, with a checkpoint) or failed"},
    {"FSDP_RUN", commands, "name of the run"},
    {"FSDP_RUN_DIR", commands, "its folder, absolute"},
    {"FSDP_STEP", commands, "the last step that has ended"},
    {"FSDP_TOTAL_STEPS", commands, "steps of the whole run; empty before they are known"},
    {"FSDP_LOSS", commands, "loss of that step; empty where the job has made none"},
    {"FSDP_MESSAGE", commands, "the error, or a few words; one line"},
    {"FSDP_EXIT_CODE", commands, "exit code of the job; empty at its start"},

    {"FSDP_HOME", jobs, "folder of the project or of the unpacked tarball"},
    {"FSDP_BIN", jobs, "folder of the programs"},
    {.name = "FSDP_SITE",
     .reader = jobs,
     .meaning = "the site file; empty: none. Default: ~/.config/fsdp/site.sh",
     .page = "clusters.md#your-site"},
    {"FSDP_OPT_*", jobs, "an option of fsdp-finetune: FSDP_OPT_WARMUP_RATIO=0.05 is --warmup-ratio=0.05"},
    {"FSDP_PYTHON", jobs, "Python of scripts/gpu-check"},
    {"FSDP_HOST_MPI", jobs, "folder of the host's MPI, for the programs in a container"},
    {"FSDP_PREFIX", jobs, "folder of the installation, which the module file sets"},

    {.name = "FSDP_MPI",
     .reader = builds,
     .meaning = "the MPI to build with, regardless of the one that is found: a word, or the path of an mpicxx",
     .choices = "site, wheel, openmpi, debian",
     .page = "clusters.md#which-mpi"},
    {.name = "FSDP_PACKAGES",
     .reader = builds,
     .meaning = "skip: Debian's packages are not looked for, the libraries come from modules, conda or Spack. "
                "debian12: the compiler and the libraries of Debian 12 are unpacked",
     .choices = "skip, debian12",
     .page = "install.md#without-root"},
    {.name = "FSDP_TORCH",
     .reader = builds,
     .meaning = "version of LibTorch that scripts/setup installs; for the programs of a tarball, the folder of a "
                "LibTorch",
     .page = "install.md#drivers-and-versions-of-torch"},
    {"FSDP_BUILD_DIR", builds, "folder of the build. Default: build"},
    {"FSDP_DEBIAN_MIRROR", builds, "URL of a mirror of Debian's packages"},
    {"FSDP_VENV", builds, "Python environment with the libraries. Default: .deps/venv"},
    {"FSDP_CPU", builds, "processor that QEMU emulates for scripts/cross"},

    {"FSDP_ALL", tests},
    {"FSDP_BF16CHECK_SIMULATED", tests},
    {"FSDP_BUILD", tests},
    {"FSDP_CKPT_CONVERT", tests},
    {"FSDP_CMAKE", tests},
    {"FSDP_CUDA_LIBRARY", tests},
    {"FSDP_DATA", tests},
    {"FSDP_FINETUNE", tests},
    {"FSDP_FIXTURES", tests},
    {"FSDP_GPU_LAUNCHES", tests},
    {"FSDP_KERNEL_LOGS", tests},
    {"FSDP_LLAMA_GIB", tests},
    {"FSDP_LM_EVAL", tests},
    {"FSDP_TRL", tests},
    {"FSDP_LOADED", tests},
    {"FSDP_LOADED_PROGRAMS", tests},
    {"FSDP_LOADED_TOO", tests},
    {"FSDP_MEGATRON", tests},
    {"FSDP_MODULECMD", tests},
    {"FSDP_MPIEXEC", tests},
    {"FSDP_MPI_FOLDERS", tests},
    {"FSDP_NVCC", tests},
    {"FSDP_PBS_*", tests},
    {"FSDP_POWER_*", tests},
    {"FSDP_SIMULATED_*", tests},
    {"FSDP_SOURCE", tests},
    {"FSDP_STUB_*", tests},
});

bool stands_for(const Variable& variable, std::string_view name) {
  return variable.name.ends_with('*') ? name.starts_with(variable.name.substr(0, variable.name.size() - 1))
                                      : name == variable.name;
}

/// "cudnn, flash, efficient or blocks" for "cudnn, flash, efficient, blocks"
std::string alternatives(std::string_view choices) {
  const auto last = choices.rfind(", ");
  if (last == std::string_view::npos) return std::string(choices);
  return fmt::format("{} or {}", choices.substr(0, last), choices.substr(last + 2));
}

bool is_one_of(std::string_view word, std::string_view choices) {
  return !word.empty() && word.find(',') == std::string_view::npos &&
         fmt::format(", {},", choices).find(fmt::format(", {},", word)) != std::string::npos;
}

bool is_number_above_0(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(number) && number > 0;
}

}  // namespace

std::span<const Variable> variables() { return kVariables; }

std::string_view name_of(VariableReader reader) {
  switch (reader) {
    case programs:
      return "programs";
    case commands:
      return "commands";
    case jobs:
      return "jobs";
    case builds:
      return "builds";
    case tests:
      break;
  }
  return "tests";
}

std::optional<std::string> variable_value(std::string_view name) {
  const char* text = std::getenv(std::string(name).c_str());
  if (text == nullptr || *text == '\0') return std::nullopt;
  const std::string value = text;
  for (const auto& variable : kVariables) {
    if (!stands_for(variable, name)) continue;
    if (!variable.choices.empty() && !is_one_of(value, variable.choices))
      throw UsageError(fmt::format("{}={}: expected {}", name, printable(value), alternatives(variable.choices)));
    if (variable.is_number && !is_number_above_0(value))
      throw UsageError(fmt::format("{}={}: expected a number above 0, such as 1e11", name, printable(value)));
  }
  return value;
}

void check_variables() {
  for (const auto& variable : kVariables) {
    if (variable.reader == programs) variable_value(variable.name);
  }
}

std::vector<std::string> unknown_variables() {
  std::vector<std::string> unknown;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view pair = *entry;
    const auto name = pair.substr(0, pair.find('='));
    if (!name.starts_with(kPrefix)) continue;
    if (std::none_of(kVariables.begin(), kVariables.end(), [&](const auto& v) { return stands_for(v, name); }))
      unknown.emplace_back(name);
  }
  std::sort(unknown.begin(), unknown.end());
  return unknown;
}

}  // namespace fsdp
