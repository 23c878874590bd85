#pragma once
// The job of fsdp-memprobe: predicts, searches and measures memory, and reports the result.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/messages/log.hpp"
#include "lib/base/types/error.hpp"
#include "lib/models/config/known_models.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/training/step/train_options.hpp"

namespace fsdp {

struct MemprobeOptions {
  TrainOptions train;                     ///< options of the job that is analysed
  std::optional<KnownModel> known_model;  ///< in place of train.model's files, which are not there
  bool precision_is_open = false;         ///< no option says in which precision the job computes
  // Values to compare; each combination gives one answer.
  std::vector<Sharding> shardings{Sharding::full_shard};
  std::vector<int> checkpointings{0};  ///< recompute every n-th block; 0: no recomputation
  std::vector<c10::ScalarType> precisions{c10::ScalarType::Float};
  std::vector<int> nodes;                  ///< numbers of whole nodes, instead of `ranks`
  int ranks = 0;                           ///< 0: the number of this job's ranks
  int ranks_per_node = 0;                  ///< 0: as in this job, or all of `ranks` when that is given
  int rank = 0;                            ///< index of the simulated rank
  std::string gpu;                         ///< name or bytes of a GPU; empty: the GPU of this machine, else CPUs
  std::string memory;                      ///< host memory of a rank on CPUs; empty: the rank's share of this machine
  std::string cuda_context, nccl_buffers;  ///< bytes that replace the usual sizes
  std::string margin;                      ///< bytes or percent that a search leaves free; empty: calibrated, or 0.5 %
  std::vector<std::string> calibrations;   ///< memory.json or speed.json files of earlier runs, or directories of runs
  std::string rates_file;                  ///< output of fsdp-bf16check --json; empty: a table, or measured here
  int check_threads = 1;                   ///< threads per rank of the fsdp-bf16check run, on CPUs
  double link_gb_per_s = 0;                ///< GB/s of a rank inside a node; 0: from the rates
  double network_gb_per_s = 0;             ///< GB/s of a node; 0: from the rates
  double run_tokens = 0;                   ///< target tokens of the whole run; 0: --max-steps of them, if given
  double price = 0;                        ///< of an hour of a GPU, on CPUs of a node; 0: not asked
  int cores = 0;                           ///< per node, for ranks on CPUs; 0: as on this machine
  bool plan_for_largest = false;           ///< plan for the largest total batch, not for the highest speed
  bool search = false;
  bool search_model = false;  ///< search for the most layers instead of the largest batch
  bool search_ranks = false;  ///< search for the fewest ranks instead; `ranks` is the most, 0: 4096
  bool measure = false;
  bool alone = false;                      ///< measure the simulated rank in this process only
  std::int64_t max_batch = 0;              ///< upper limit of a batch search; 0: 65536
  std::string plot_file;                   ///< .svg
  std::vector<std::string> trial_command;  ///< this program and its arguments, to measure in child processes
};

/// The combination that --plan writes to a config file.
struct MemprobeChoice {
  Sharding sharding = Sharding::full_shard;
  int checkpoint_every = 0;
  c10::ScalarType precision = c10::ScalarType::Float;
  std::int64_t batch_size = 0;
  int ranks = 0, ranks_per_node = 0;
  std::int64_t host_bytes = 0;  ///< bytes of one rank
  std::string gpu;              ///< name of the GPU; empty: CPUs
  std::string summary;          ///< one line about its memory and speed
};

/// \param choice  receives the best combination; stays empty when none fits
/// \return answer_no (exit code 3) when the job does not fit, or no batch or model does
ExitCode run_memprobe(ProcessGroup& world, const MemprobeOptions& options, const Logger& log, nlohmann::json& report,
                      std::optional<MemprobeChoice>& choice);

}  // namespace fsdp
