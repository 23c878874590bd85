#pragma once
// MPI loaded at run time: linking it would add 45 ms to every start of programs that mostly run as one process, and
// would bind the programs to one MPI. Libraries of MPI come in families, each with an ABI of its own:
//
//   libfsdp_mpi.so           the MPI of the build, by default MPICH, whose ABI Intel MPI, Cray MPICH, MVAPICH have, too
//   libfsdp_mpi_openmpi.so   Open MPI 4 and 5 (libmpi.so.40)
//   libfsdp_mpi_standard.so  the standard ABI of MPI 5 (libmpi_abi.so.1): MPICH 5, Intel MPI 2021.19, later Open MPI
//
// These plugins lie beside the program, and hold the rest of this folder (mpi_*.cpp, memfd_peer_memory.cpp). The
// launcher that started the process decides which one is loaded.
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/ranks/rank_environment.hpp"

namespace fsdp {

/// Loads the plugin of the launcher's MPI from ../lib/fsdp or ../lib, relative to the program, and initialises MPI.
/// \throws RuntimeFailure when no plugin is there, belongs to another build or does not load, and as MpiEnvironment's
///         constructor does
std::unique_ptr<RankEnvironment> load_mpi(const MpiOptions& options);

/// The version of the MPI that load_mpi() would start, such as "MPICH 5.0.2", or why it is unknown. Loads the library,
/// but does not initialise MPI.
std::string loaded_mpi_version();

/// The lines of --version: the MPI of loaded_mpi_version(), and the families that other launchers load, if any.
std::string mpi_version_lines();

namespace detail {

/// Program and plugin exchange C++ objects, so both must come from one build. Increase the number when RankEnvironment
/// or ProcessGroup changes.
inline constexpr const char* kMpiPluginAbi = "fsdp " FSDP_VERSION ", rank interface 4";

/// The three symbols of a plugin.
using MpiAbiFunction = const char*();
/// \return null after an error, whose exit code and message are written
using MakeMpiFunction = RankEnvironment*(const MpiOptions* options, ExitCode* code, char* error,
                                         std::size_t error_bytes);
using MpiVersionFunction = void(char* text, std::size_t text_bytes);
inline constexpr const char* kMpiAbiSymbol = "fsdp_mpi_abi";
inline constexpr const char* kMakeMpiSymbol = "fsdp_make_mpi";
inline constexpr const char* kMpiVersionSymbol = "fsdp_mpi_version";

/// A family of MPI libraries.
struct MpiFamily {
  std::string_view word;  ///< as in FSDP_LOAD_MPI
  std::string_view name;  ///< for messages
  const char* plugin;     ///< file of its plugin
  const char* library;    ///< name of the MPI library that the plugin loads; nullptr: the one of the build
};
/// The families in the order in which they are tried: those that the launcher of this process can have started, or the
/// one that FSDP_LOAD_MPI names. \throws UsageError for another value of that variable
std::vector<MpiFamily> families_to_try();

/// Candidate paths of libfsdp_mpi.so for a program in `program_directory`.
std::vector<std::filesystem::path> mpi_plugin_candidates(const std::filesystem::path& program_directory);

/// The folders of `program`'s installation that hold libraries: for /opt/openmpi/bin/orted /opt/openmpi/lib and lib64.
std::vector<std::filesystem::path> library_folders_of(const std::filesystem::path& program);

struct MpiPlugin {
  MakeMpiFunction* make = nullptr;
  MpiVersionFunction* version = nullptr;
};
/// \throws RuntimeFailure unless `library` loads and its ABI string equals `abi`
MpiPlugin open_mpi_plugin(const std::filesystem::path& library, const std::string& abi);

}  // namespace detail
}  // namespace fsdp
