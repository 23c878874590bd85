#pragma once
// A job that only says what it would do.
#include "apps/finetune/run_setup.hpp"

namespace fsdp::detail {

/// Plans the model on tensors without data, among ranks that are not there, so that it is planned where it has no room;
/// then describes the run as one that trains does. Collective. \throws UsageError for what training would refuse
void dry_run(ProcessGroup& world, const RunSetup& setup, const Logger& log);

}  // namespace fsdp::detail
