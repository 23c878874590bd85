#pragma once
// Whether what was asked of validations can be, known before the first step.
#include <cstddef>

#include "apps/finetune/run_setup.hpp"

namespace fsdp::detail {

/// \return what --keep-best and --patience go by
/// \throws UsageError
DecidingMetric check_validation_options(const TrainOptions& options);

/// \pre the tokenizer is chosen \throws UsageError, FormatError
void check_sample_prompts(const RunSetup& setup);

}  // namespace fsdp::detail
