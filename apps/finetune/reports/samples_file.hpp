#pragma once
// --samples lists the first samples of a run.
#include "apps/finetune/run_setup.hpp"
#include "lib/base/messages/log.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp::detail {

/// Writes the samples that the run reads next into the file of --samples, on rank 0: per line {"position", "source",
/// "row" (of texts that are not packed "document"), "epoch"}, and of packed rows the "documents". Collective.
/// \throws IoError; UsageError when the job does not train
void write_samples(ProcessGroup& world, const RunSetup& setup, const Logger& log);

}  // namespace fsdp::detail
