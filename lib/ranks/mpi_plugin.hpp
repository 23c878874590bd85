#pragma once
// MPI loaded at run time: linking it costs every start 45 ms, which a program that mostly runs alone need not pay.
//
// libfsdp_mpi.so lies beside the program and holds the rest of this folder (mpi_*.cpp, memfd_peer_memory.cpp).
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lib/ranks/rank_environment.hpp"

namespace fsdp {

/// Loads libfsdp_mpi.so from beside the program (../lib/fsdp, ../lib) and starts MPI.
/// \throws RuntimeFailure when it is missing, belongs to another build or does not load, saying which; as
///         MpiEnvironment's constructor
std::unique_ptr<RankEnvironment> load_mpi(const MpiOptions& options);

/// "MPICH 5.0.2" and the like, or why it cannot be told. Loads the library, but does not start MPI.
std::string loaded_mpi_version();

namespace detail {

/// Program and plugin exchange C++ objects, so both must come from one build. Bump the number with RankEnvironment or
/// ProcessGroup.
inline constexpr const char* kMpiPluginAbi = "fsdp " FSDP_VERSION ", rank interface 1";

/// The three symbols of libfsdp_mpi.so.
using MpiAbiFunction = const char*();
using MakeMpiFunction = RankEnvironment*(const MpiOptions* options, char* error, std::size_t error_bytes);
using MpiVersionFunction = void(char* text, std::size_t text_bytes);
inline constexpr const char* kMpiAbiSymbol = "fsdp_mpi_abi";
inline constexpr const char* kMakeMpiSymbol = "fsdp_make_mpi";
inline constexpr const char* kMpiVersionSymbol = "fsdp_mpi_version";

/// Where libfsdp_mpi.so may lie, for a program in `program_directory`.
std::vector<std::filesystem::path> mpi_plugin_candidates(const std::filesystem::path& program_directory);

struct MpiPlugin {
  MakeMpiFunction* make = nullptr;
  MpiVersionFunction* version = nullptr;
};
/// \throws RuntimeFailure unless `library` loads and names `abi` as its own
MpiPlugin open_mpi_plugin(const std::filesystem::path& library, const std::string& abi);

}  // namespace detail
}  // namespace fsdp
