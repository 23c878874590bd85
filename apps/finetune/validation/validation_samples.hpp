#pragma once
// The texts of --sample-prompt, which a validation continues.
#include <functional>
#include <vector>

#include "apps/finetune/reports/run_record.hpp"
#include "apps/finetune/run_setup.hpp"
#include "lib/training/evaluate/prompt.hpp"

namespace fsdp::detail {

/// \pre the tokenizer is chosen
/// \throws UsageError, FormatError
void check_sample_prompts(const RunSetup& setup);

/// Encodes the prompts of --sample-prompt, with --sample-chat as user messages. Call when the data's chat template is
/// known.
/// \pre check_sample_prompts() has passed
/// \throws UsageError; FormatError when there is no chat template
std::vector<Prompt> sample_prompts(const RunSetup& setup);

/// Continues every prompt, as fsdp-eval --prompt --temperature 0 does, and adds the texts to the record. Does not
/// influence training. Collective.
/// \param stopped  called before each prompt; returns the same on every rank
/// \return false when stopped
bool write_samples(const RunContext& context, RunRecord& record, const std::function<bool()>& stopped);

}  // namespace fsdp::detail
