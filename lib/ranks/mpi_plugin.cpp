#include "lib/ranks/mpi_plugin.hpp"

#include <fmt/format.h>

#include <array>

#include "lib/base/process/plugin.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {
namespace detail {
namespace {

/// Loaded with RTLD_GLOBAL, because some MPI libraries load components that look up the library's symbols by name.
PluginKind mpi_plugin() {
  return {"libfsdp_mpi.so", "MPI support", kMpiAbiSymbol, {kMakeMpiSymbol, kMpiVersionSymbol}, true};
}

MpiPlugin find_mpi_plugin() {
  std::vector<std::filesystem::path> candidates;
  if (const auto library = find_plugin(mpi_plugin(), candidates)) return open_mpi_plugin(*library, kMpiPluginAbi);
  throw RuntimeFailure(
      fmt::format("an MPI launcher started this program, but its MPI support is missing (neither {} nor {} exists): "
                  "install it again, or run without the launcher",
                  candidates.front().string(), candidates.back().string()));
}

}  // namespace

std::vector<std::filesystem::path> mpi_plugin_candidates(const std::filesystem::path& program_directory) {
  return plugin_candidates(program_directory, mpi_plugin().file);
}

MpiPlugin open_mpi_plugin(const std::filesystem::path& library, const std::string& abi) {
  const auto functions = open_plugin(mpi_plugin(), library, abi);
  return {reinterpret_cast<MakeMpiFunction*>(functions[0]), reinterpret_cast<MpiVersionFunction*>(functions[1])};
}

}  // namespace detail

std::unique_ptr<RankEnvironment> load_mpi(const MpiOptions& options) {
  std::array<char, 2048> error{};
  std::unique_ptr<RankEnvironment> environment(detail::find_mpi_plugin().make(&options, error.data(), error.size()));
  if (environment == nullptr) throw RuntimeFailure(error.data());
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

}  // namespace fsdp
