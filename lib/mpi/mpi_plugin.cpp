#include "lib/mpi/mpi_plugin.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <system_error>

#include "lib/base/error.hpp"

namespace fsdp {
namespace detail {
namespace {

template <class Function>
Function* find_symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

MpiPlugin find_mpi_plugin() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    throw RuntimeFailure("cannot tell where this program lies (/proc/self/exe: " + error.message() +
                         "), and so not where its MPI support is");
  }
  const auto candidates = mpi_plugin_candidates(program.parent_path());
  for (const auto& candidate : candidates) {
    if (std::filesystem::exists(candidate, error)) return open_mpi_plugin(candidate, kMpiPluginAbi);
  }
  throw RuntimeFailure(
      fmt::format("an MPI launcher started this program, but its MPI support is missing (neither {} nor {} exists): "
                  "install it again, or run without the launcher",
                  candidates.front().string(), candidates.back().string()));
}

}  // namespace

std::vector<std::filesystem::path> mpi_plugin_candidates(const std::filesystem::path& program_directory) {
  const auto lib = program_directory.parent_path() / "lib";  // also the build tree's
  return {lib / "fsdp" / "libfsdp_mpi.so", lib / "libfsdp_mpi.so"};
}

MpiPlugin open_mpi_plugin(const std::filesystem::path& library, const std::string& abi) {
  // Global, because some MPI libraries open parts of themselves that look for the rest by name. Never unloaded: MPI
  // does not survive that.
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* text = ::dlerror();
    throw RuntimeFailure(fmt::format("the MPI support does not load: {}", text != nullptr ? text : "unknown reason"));
  }
  auto* abi_of = find_symbol<MpiAbiFunction>(handle, kMpiAbiSymbol);
  const MpiPlugin plugin{find_symbol<MakeMpiFunction>(handle, kMakeMpiSymbol),
                         find_symbol<MpiVersionFunction>(handle, kMpiVersionSymbol)};
  if (abi_of == nullptr || plugin.make == nullptr || plugin.version == nullptr) {
    throw RuntimeFailure(library.string() + " is not the MPI support of this toolkit: it lacks its entry points");
  }
  if (abi != abi_of()) {
    throw RuntimeFailure(
        fmt::format("{} belongs to another build: it is for \"{}\", this program is \"{}\"; install both together",
                    library.string(), abi_of(), abi));
  }
  return plugin;
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
