#pragma once
// Runs the whole bf16 check over the ranks of a job: facts, measurements, verdict, report.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lib/base/messages/log.hpp"
#include "lib/base/types/error.hpp"
#include "lib/bf16/fact_source.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

struct Bf16CheckOptions {
  RequestedDevice device = RequestedDevice::automatic;
  std::int64_t size_mb = 0;            ///< largest tensor of the all-reduce, in MiB; 0: 64 on GPUs, 16 on CPUs
  bool quick = false;                  ///< measure for a quarter of the time
  std::int64_t repeat = 1;             ///< checks of products and of what arrives in collectives
  std::filesystem::path exclude_file;  ///< file that receives the list of bad hosts; empty: none
  std::string mpi_library;             ///< "MPICH 5.0.2", for the report
};

struct Bf16CheckResult {
  ExitCode exit_code = ExitCode::ok;  ///< the same on all ranks: ok when bf16 is native on all, else answer_no
  std::string table;                  ///< on rank 0
};

/// Collective.
/// \param report  filled on rank 0
/// \throws UsageError for options that cannot work; RuntimeFailure when a rank does not arrive
Bf16CheckResult run_bf16_check(ProcessGroup& world, Bf16FactSource& source, const Bf16CheckOptions& options,
                               const Logger& log, nlohmann::json& report);

}  // namespace fsdp
