#pragma once
// Whether what was asked of validations can be, known before the first step.
#include <cstddef>

#include "lib/jobs/finetune/run_setup.hpp"

namespace fsdp::detail {

/// \return which of options.val_sets --keep-best and --patience go by
/// \throws UsageError
std::size_t check_validation_options(const TrainOptions& options);

/// \pre the tokenizer is chosen \throws UsageError, FormatError
void check_sample_prompts(const RunSetup& setup);
/// Of --sample-chat, once the data says by which template: that questions can be written by it.
/// \throws UsageError, FormatError
void check_sample_questions(const RunSetup& setup);

}  // namespace fsdp::detail
