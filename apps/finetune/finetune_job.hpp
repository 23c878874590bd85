#pragma once
// A whole job of fsdp-finetune on one rank, from its parsed command line to its exit code.
#include <nlohmann/json_fwd.hpp>

#include "apps/common/finetune_options.hpp"
#include "apps/finetune/reports/job_events.hpp"
#include "lib/base/messages/log.hpp"
#include "lib/base/types/error.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// Claims the run's folder, takes over the options of the checkpoint that the job continues from, and trains.
/// Collective over `world`.
/// \param app        parsed, with the options of add_finetune_options()
/// \param arguments  normalize_finetune_options() has been called
/// \param events     hears of the start and of each step
/// \param report     receives the result that --json prints (rank 0)
/// \throws Error subclasses; then the caller must end the job on all ranks
ExitCode run_finetune_job(OptionTable& app, FinetuneArguments& arguments, JobEvents& events, ProcessGroup& world,
                          const Logger& log, nlohmann::json& report);

}  // namespace fsdp
