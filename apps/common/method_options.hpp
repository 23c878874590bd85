#pragma once
// What of a model is trained, and how sparingly.
#include <CLI/CLI.hpp>

#include "lib/training/step/train_options.hpp"

namespace fsdp {

void add_method_options(CLI::App& app, TrainOptions& options);

}  // namespace fsdp
