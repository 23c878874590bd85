#pragma once
// The training job of fsdp-finetune: one options struct in, an exit code out.
#include <nlohmann/json_fwd.hpp>

#include "apps/finetune/reports/job_events.hpp"
#include "lib/base/messages/log.hpp"
#include "lib/base/types/error.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/training/run/run_start.hpp"
#include "lib/training/step/train_options.hpp"

namespace fsdp {

/// Trains, or only evaluates, as the options say. Collective over `world`.
/// \param start          made from these options before the checkpoint's options were applied
/// \param saved_options  options as text by long name, kept in checkpoints for resuming
/// \param events         hears of the start and of each step
/// \param report         receives the result that --json prints (rank 0)
/// \return ok, or stopped_early after a signal or time limit with a good checkpoint
/// \throws Error subclasses; then the caller must end the job on all ranks
ExitCode run_finetune(ProcessGroup& world, RunStart& start, const TrainOptions& options,
                      const nlohmann::json& saved_options, JobEvents& events, const Logger& log,
                      nlohmann::json& report);

}  // namespace fsdp
