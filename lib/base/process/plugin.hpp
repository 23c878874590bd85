#pragma once
// The toolkit's shared objects that a program loads at run time when it needs them.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

struct PluginKind {
  std::string file;                  ///< "libfsdp_mpi.so"
  std::string support;               ///< what the plugin provides, for messages: "MPI support"
  const char* abi_symbol;            ///< a function without arguments that returns the ABI string of its build
  std::vector<const char*> symbols;  ///< the plugin's other functions
  bool global = false;               ///< load with RTLD_GLOBAL, so that libraries loaded later find its symbols
};

/// Candidate paths of a plugin for a program in `program_directory`: ../lib/fsdp and ../lib, which is also the layout
/// of the build tree.
std::vector<std::filesystem::path> plugin_candidates(const std::filesystem::path& program_directory,
                                                     const std::string& file);

/// The first candidate of the running program that exists. `looked_at` receives all candidates.
/// \throws RuntimeFailure when the path of the program cannot be determined
std::optional<std::filesystem::path> find_plugin(const PluginKind& kind, std::vector<std::filesystem::path>& looked_at);

/// Loads `library`, without ever unloading it, and returns the addresses of kind.symbols.
/// \throws RuntimeFailure unless `library` loads, has all functions, and its ABI string equals `abi`
std::vector<void*> open_plugin(const PluginKind& kind, const std::filesystem::path& library, const std::string& abi);

/// The path of the first library in this process's memory whose file name begins with `name`; "" when there is none,
/// and without /proc.
std::string loaded_library(const std::string& name);

}  // namespace fsdp
