#pragma once
// Shared objects of ours that a program loads at run time, from beside itself, when it needs what they bring.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

struct PluginKind {
  std::string file;                  ///< "libfsdp_mpi.so"
  std::string support;               ///< what it brings, for messages: "MPI support"
  const char* abi_symbol;            ///< a function without arguments that returns the build it belongs to
  std::vector<const char*> symbols;  ///< its other functions
  bool global = false;               ///< its symbols serve libraries that are loaded later
};

/// Where the file may lie, for a program in `program_directory`: ../lib/fsdp and ../lib, which is also the build
/// tree's.
std::vector<std::filesystem::path> plugin_candidates(const std::filesystem::path& program_directory,
                                                     const std::string& file);

/// Of the running program's candidates the first that exists; `looked_at` receives them all.
/// \throws RuntimeFailure when it cannot be told where this program lies
std::optional<std::filesystem::path> find_plugin(const PluginKind& kind, std::vector<std::filesystem::path>& looked_at);

/// Loads it for good and returns the addresses of kind.symbols.
/// \throws RuntimeFailure unless `library` loads, has all functions and names `abi` as its own
std::vector<void*> open_plugin(const PluginKind& kind, const std::filesystem::path& library, const std::string& abi);

}  // namespace fsdp
