#include "lib/ranks/mpi_plugin.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "lib/base/process/plugin.hpp"
#include "lib/base/process/scheduler.hpp"
#include "lib/base/process/variables.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {
namespace detail {
namespace {

constexpr std::array kFamilies{
    MpiFamily{"own", "the MPI of the build", "libfsdp_mpi.so", nullptr},
    MpiFamily{"openmpi", "Open MPI", "libfsdp_mpi_openmpi.so", "libmpi.so.40"},
    MpiFamily{"standard", "MPI 5's standard ABI", "libfsdp_mpi_standard.so", "libmpi_abi.so.1"},
};

/// Loaded with RTLD_GLOBAL, because some MPI libraries load components that look up the library's symbols by name.
PluginKind plugin_of(const MpiFamily& family) {
  return {family.plugin, "MPI support", kMpiAbiSymbol, {kMakeMpiSymbol, kMpiVersionSymbol}, true};
}

/// True if LD_LIBRARY_PATH, which a site's module sets, leads to `library`.
bool is_on_library_path(const std::string& library) {
  const char* path = std::getenv("LD_LIBRARY_PATH");
  if (path == nullptr) return false;
  std::string_view rest(path);
  while (!rest.empty()) {
    const auto end = std::min(rest.find_first_of(":;"), rest.size());
    std::error_code error;
    if (end > 0 && std::filesystem::exists(std::filesystem::path(rest.substr(0, end)) / library, error)) return true;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return false;
}

/// Loads the MPI library that belongs to the launcher of this process, which the loader would not find where no module
/// has set LD_LIBRARY_PATH, or in whose place it would find another installation. The plugin then takes this one, as it
/// has the same name. Nothing happens where the launcher does not lie beside such a library.
void load_beside_launcher(const char* library) {
  if (library == nullptr || is_on_library_path(library)) return;
  std::error_code error;
  const auto launcher = std::filesystem::read_symlink(fmt::format("/proc/{}/exe", ::getppid()), error);
  if (error) return;
  for (const auto& folder : library_folders_of(launcher)) {
    const auto file = folder / library;
    if (std::filesystem::exists(file, error) &&
        ::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE) != nullptr)
      return;
  }
}

/// The plugin of the first family that is there and loads.
MpiPlugin find_mpi_plugin() {
  std::vector<std::filesystem::path> candidates;
  std::string problem;
  for (const auto& family : families_to_try()) {
    const auto file = find_plugin(plugin_of(family), candidates);
    if (!file) continue;
    load_beside_launcher(family.library);
    try {
      return open_mpi_plugin(*file, kMpiPluginAbi);
    } catch (const RuntimeFailure& failure) {
      if (problem.empty()) problem = failure.what();
    }
  }
  if (problem.empty()) {
    find_plugin(plugin_of(kFamilies.front()), candidates);  // which every installation has
    problem = fmt::format(
        "an MPI launcher started this program, but its MPI support is missing (neither {} nor {} exists): install it "
        "again, or run without the launcher",
        candidates.front().string(), candidates.back().string());
  }
  throw RuntimeFailure(problem);
}

}  // namespace

std::vector<MpiFamily> families_to_try() {
  const auto& [own, open_mpi, standard] = kFamilies;
  if (const auto word = variable_value("FSDP_LOAD_MPI")) {
    const auto* named = std::ranges::find(kFamilies, *word, &MpiFamily::word);
    return {*named};
  }
  switch (launcher_kind()) {
    case LauncherKind::open_mpi:
      return {open_mpi, standard, own};  // own: where the build's MPI is Open MPI
    case LauncherKind::pmix:
      return {open_mpi, own, standard};
    case LauncherKind::none:
    case LauncherKind::other:
      break;
  }
  return {own, standard};
}

std::vector<std::filesystem::path> mpi_plugin_candidates(const std::filesystem::path& program_directory) {
  return plugin_candidates(program_directory, kFamilies.front().plugin);
}

std::vector<std::filesystem::path> library_folders_of(const std::filesystem::path& program) {
  const auto prefix = program.parent_path().parent_path();
  return {prefix / "lib", prefix / "lib64"};
}

MpiPlugin open_mpi_plugin(const std::filesystem::path& library, const std::string& abi) {
  const auto functions = open_plugin(plugin_of(kFamilies.front()), library, abi);
  return {reinterpret_cast<MakeMpiFunction*>(functions[0]), reinterpret_cast<MpiVersionFunction*>(functions[1])};
}

}  // namespace detail

std::unique_ptr<RankEnvironment> load_mpi(const MpiOptions& options) {
  std::array<char, 2048> error{};
  auto code = ExitCode::failed;
  std::unique_ptr<RankEnvironment> environment(
      detail::find_mpi_plugin().make(&options, &code, error.data(), error.size()));
  if (environment == nullptr) throw Error(code, error.data());
  return environment;
}

std::string loaded_mpi_version() {
  std::array<char, 1024> text{};
  try {
    detail::find_mpi_plugin().version(text.data(), text.size());
  } catch (const RuntimeFailure& failure) {
    return failure.what();
  }
  return text.data();
}

std::string mpi_version_lines() {
  std::string others;
  std::vector<std::filesystem::path> looked_at;
  for (const auto& family : detail::kFamilies) {
    if (family.library != nullptr && find_plugin(detail::plugin_of(family), looked_at))
      others += fmt::format("{}{}", others.empty() ? "\nMPI by its launcher: " : ", ", family.name);
  }
  return "MPI " + loaded_mpi_version() + others;
}

}  // namespace fsdp
