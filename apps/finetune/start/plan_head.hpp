#pragma once
// The head of scores of a run: --head classify and reward.
#include <functional>

#include "apps/finetune/run_setup.hpp"
#include "lib/base/messages/log.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp::detail {

/// Gives setup.config the head that --head asks for, unless the weights have one. Labels of a classifier are those of
/// --labels, or are found in the training data. Call once the tokenizer is known, before data is opened. Collective.
/// \throws UsageError for a head that the model's own contradicts; what find_labels() throws
void plan_head(ProcessGroup& world, RunSetup& setup, const Logger& log, const std::function<bool()>& stop_wanted);

/// \pre the model has a head of scores \throws UsageError for options that ask for another one, or for other labels
void check_own_head(const ModelConfig& config, const TrainOptions& options);

}  // namespace fsdp::detail
