#pragma once
// --sample-prompt: what the model writes at each validation.
#include <functional>
#include <vector>

#include "apps/finetune/run_record.hpp"
#include "lib/training/evaluate/generate_text.hpp"

namespace fsdp::detail {

/// What the model goes on from for --sample-prompt's texts, with --sample-chat as a user's messages, once the data says
/// by which template.
/// \pre check_sample_prompts(). \throws UsageError, FormatError where there is no chat template
std::vector<Prompt> sample_prompts(const RunSetup& setup);

/// Goes on from every prompt, as fsdp-eval --prompt --temperature 0 does, and adds the texts to the record. Training
/// goes on as if it had not been. Collective. \param stopped  asked before each, the same answer on every rank
/// \return false: it was stopped
bool write_samples(const RunContext& context, RunRecord& record, const std::function<bool()>& stopped);

}  // namespace fsdp::detail
