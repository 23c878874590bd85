#pragma once
// MPI loaded at run time, because linking it would add 45 ms to every start of programs that mostly run as one process.
//
// libfsdp_mpi.so lies beside the program and holds the rest of this folder (mpi_*.cpp, memfd_peer_memory.cpp).
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lib/ranks/rank_environment.hpp"

namespace fsdp {

/// Loads libfsdp_mpi.so from ../lib/fsdp or ../lib, relative to the program, and initialises MPI.
/// \throws RuntimeFailure when the library is missing, belongs to another build or does not load, and as
///         MpiEnvironment's constructor does
std::unique_ptr<RankEnvironment> load_mpi(const MpiOptions& options);

/// The version of MPI, such as "MPICH 5.0.2", or why it is unknown. Loads the library, but does not initialise MPI.
std::string loaded_mpi_version();

namespace detail {

/// Program and plugin exchange C++ objects, so both must come from one build. Increase the number when RankEnvironment
/// or ProcessGroup changes.
inline constexpr const char* kMpiPluginAbi = "fsdp " FSDP_VERSION ", rank interface 3";

/// The three symbols of libfsdp_mpi.so.
using MpiAbiFunction = const char*();
using MakeMpiFunction = RankEnvironment*(const MpiOptions* options, char* error, std::size_t error_bytes);
using MpiVersionFunction = void(char* text, std::size_t text_bytes);
inline constexpr const char* kMpiAbiSymbol = "fsdp_mpi_abi";
inline constexpr const char* kMakeMpiSymbol = "fsdp_make_mpi";
inline constexpr const char* kMpiVersionSymbol = "fsdp_mpi_version";

/// Candidate paths of libfsdp_mpi.so for a program in `program_directory`.
std::vector<std::filesystem::path> mpi_plugin_candidates(const std::filesystem::path& program_directory);

struct MpiPlugin {
  MakeMpiFunction* make = nullptr;
  MpiVersionFunction* version = nullptr;
};
/// \throws RuntimeFailure unless `library` loads and its ABI string equals `abi`
MpiPlugin open_mpi_plugin(const std::filesystem::path& library, const std::string& abi);

}  // namespace detail
}  // namespace fsdp
