#pragma once
// The first lines of a job's log (ranks, model, data), and --dry-run, which prints them without training.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/finetune/run_setup.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp::detail {

/// Returns how rank 0 multiplies matrices. Warns when other ranks multiply differently, because their sums then round
/// differently. Collective.
std::string agree_on_products(ProcessGroup& world, const ModelRuntime& runtime, const Logger& log);

/// Ranks of which this is equal give the same bits for the same work.
std::string describe_arithmetic(const RunSetup& setup, const ModelRuntime& runtime);

/// \param products  from agree_on_products()
void describe_run(ProcessGroup& world, const RunSetup& setup, ModelRuntime& runtime, const std::string& products,
                  const Logger& log);

/// Plans the model on meta tensors with simulated ranks, so that the plan needs no memory for weights, and prints the
/// same lines as a training run, with memory, speed and length. Collective.
/// \return answer_no when the job does not fit, after a line that says what would help
/// \throws UsageError for options that training would refuse
ExitCode dry_run(ProcessGroup& world, const RunSetup& setup, const Logger& log, nlohmann::json& report);

}  // namespace fsdp::detail
