#pragma once
// The job of fsdp-memprobe: predicts, searches, measures, and says what it found.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/base/log.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/training/step/train_options.hpp"

namespace fsdp {

struct MemprobeOptions {
  TrainOptions train;  ///< options of the job that is analysed
  // Values to compare; each combination is one answer.
  std::vector<Sharding> shardings{Sharding::full_shard};
  std::vector<int> checkpointings{0};  ///< recompute every n-th block; 0: none
  std::vector<c10::ScalarType> precisions{c10::ScalarType::Float};
  std::vector<int> nodes;                  ///< instead of `ranks`: whole nodes
  int ranks = 0;                           ///< 0: this job's
  int ranks_per_node = 0;                  ///< 0: this job's; where `ranks` is given, all of them
  int rank = 0;                            ///< the rank that is simulated
  std::string gpu;                         ///< a GPU's name or bytes; empty: the GPU at hand, else CPUs
  std::string memory;                      ///< CPUs: what a rank may take; empty: its share of this machine
  std::string cuda_context, nccl_buffers;  ///< bytes instead of the usual ones
  std::string margin;                      ///< bytes or percent that a search leaves free; empty: see below
  std::vector<std::string> calibrations;   ///< memory.json, speed.json of earlier runs, or directories of runs
  std::string rates_file;                  ///< of fsdp-bf16check --json; empty: of a table, or as measured here
  int check_threads = 1;                   ///< of a rank of that check, on a host
  double link_gb_per_s = 0;                ///< of a rank, inside a node; 0: as the rates say
  double network_gb_per_s = 0;             ///< of a node; 0: likewise
  int cores = 0;                           ///< of a node, ranks on CPUs; 0: this machine's
  bool plan_for_largest = false;           ///< the most sequences at once, not the highest speed
  bool search = false;
  bool search_model = false;  ///< search for the most layers instead of the largest batch
  bool measure = false;
  bool alone = false;          ///< measure the simulated rank in this process only
  std::int64_t max_batch = 0;  ///< of the search; 0: 65536
  std::string plot_file;       ///< .svg or .png
  std::vector<std::string>
      trial_command;  ///< this program and its arguments, for measurements in processes of their own
};

/// The combination that --plan writes.
struct MemprobeChoice {
  Sharding sharding = Sharding::full_shard;
  int checkpoint_every = 0;
  c10::ScalarType precision = c10::ScalarType::Float;
  std::int64_t batch_size = 0;
  int ranks = 0, ranks_per_node = 0;
  std::int64_t host_bytes = 0;  ///< of one rank
  std::string gpu;              ///< empty: CPUs
  std::string summary;          ///< one line on its memory and speed
};

/// \param choice  receives the best combination; nothing when none fits
/// \return no (3) when something was asked to fit and does not
ExitCode run_memprobe(ProcessGroup& world, const MemprobeOptions& options, const Logger& log, nlohmann::json& report,
                      std::optional<MemprobeChoice>& choice);

}  // namespace fsdp
