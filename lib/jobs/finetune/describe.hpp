#pragma once
// The first lines of a job's log: ranks, model, data.
#include "lib/jobs/finetune/run_setup.hpp"

namespace fsdp::detail {

void describe_run(ProcessGroup& world, const RunSetup& setup, ModelRuntime& runtime, const Logger& log);

}  // namespace fsdp::detail
