#pragma once
// --sample-prompt: what the model writes at each validation.
#include "lib/jobs/finetune/run_record.hpp"

namespace fsdp::detail {

/// Goes on from every prompt, as fsdp-eval --prompt --temperature 0 does, and adds the texts to the record. Training
/// goes on as if it had not been. Collective.
void write_samples(const RunContext& context, RunRecord& record);

}  // namespace fsdp::detail
