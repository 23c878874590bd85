#pragma once
// The options of fsdp-finetune that are about validation.
#include <CLI/CLI.hpp>

#include "lib/training/step/train_options.hpp"

namespace fsdp {

void add_validation_options(CLI::App& app, TrainOptions& options);

/// What --keep-best without a value, or as flags are in a config file, comes to.
void settle_validation_options(CLI::App& app);

}  // namespace fsdp
