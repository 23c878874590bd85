#pragma once
// Hours and price of a whole run, from the predicted speed of its steps.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "apps/memprobe/memprobe_job.hpp"

namespace fsdp::detail {

struct RunCost {
  double tokens = 0;      ///< target tokens of all steps
  double hours = 0;       ///< of the job, without starts, saves and validation
  double paid_hours = 0;  ///< of all GPUs; on CPUs of all nodes
  double price = 0;       ///< in the currency of --price; 0 without it
  bool of_gpus = false;   ///< what paid_hours counts
};

/// The hours that a job is charged for: of all GPUs, on CPUs of all nodes.
double paid_hours(double hours, int ranks, int ranks_per_node, bool of_gpus);

/// \return nothing where neither --tokens nor --max-steps says how long the run is, or no speed is predicted
std::optional<RunCost> run_cost(const Combination& combination, const std::optional<StepSpeed>& speed,
                                const MemprobeOptions& options, const MemoryBudget& budget);

/// "12.3 h, 49.1 GPU-hours, price 98 at 2 an hour, for 1,000,000,000 tokens"
std::string describe_cost(const RunCost& cost, const MemprobeOptions& options);
nlohmann::json to_json(const RunCost& cost);

/// The columns that a table gets where the run's length is known: their heads, and a row's values. Empty otherwise.
std::string cost_head(const MemprobeOptions& options, const MemoryBudget& budget);
std::string cost_columns(const std::optional<RunCost>& cost, const MemprobeOptions& options);

}  // namespace fsdp::detail
