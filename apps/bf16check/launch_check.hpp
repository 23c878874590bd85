#pragma once
// fsdp-bf16check --launch: what a launcher gave the ranks of a job, and how the folder of runs behaves between its
// nodes.
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/base/messages/log.hpp"
#include "lib/base/types/error.hpp"
#include "lib/bf16/fact_source.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

struct LaunchCheckOptions {
  RequestedDevice device = RequestedDevice::automatic;
  std::filesystem::path run_folder = ".";  ///< where runs and checkpoints will be
  double await_signal_seconds = 0;         ///< how long to wait for a signal; 0: no such test
  std::string mpi_library;                 ///< "MPICH 5.0.2"
};

/// A line of the answer.
struct LaunchFinding {
  std::string subject;  ///< "cores"
  std::string fact;
  std::string advice;  ///< what to change; "" where nothing is wrong
};

/// A rank's part of its node. Sizes in bytes; -1: unknown or without a limit.
struct LaunchFacts {
  int rank = 0, node = 0;
  std::string host;
  std::vector<int> cores;     ///< that the rank may use, ascending
  int node_cores = 0;         ///< of the node, that the job may use
  std::int64_t memory = -1;   ///< of the job on this node: the control group's limit, or the node's
  std::int64_t memlock = -1;  ///< limit of locked memory (ulimit -l), which InfiniBand and Slingshot need
  std::int64_t shared = -1;   ///< size of /dev/shm
  bool has_fabric = false;    ///< the node has InfiniBand or Slingshot
  std::string gpu;            ///< name and address of the GPU; "" without one
};

/// Findings about the ranks' places. Pure. \param ranks  of the whole job, by rank
std::vector<LaunchFinding> judge_launch(const std::vector<LaunchFacts>& ranks, bool by_open_mpi);

struct LaunchCheckResult {
  /// The same on all ranks: ok, answer_no when something needs a change, stopped_early when a signal that was waited
  /// for arrived on every rank.
  ExitCode exit_code = ExitCode::ok;
  std::string table;  ///< on rank 0
};

/// Collective. \param report  filled on rank 0. \throws IoError when the folder cannot be written
LaunchCheckResult run_launch_check(ProcessGroup& world, Bf16FactSource& source, const LaunchCheckOptions& options,
                                   const Logger& log, nlohmann::json& report);

}  // namespace fsdp
