#pragma once
// The options of what a run minimizes.
#include "apps/common/option_table.hpp"
#include "lib/training/step/train_options.hpp"

namespace fsdp {

void add_objective_options(OptionTable& table, TrainOptions& options);

/// Lets an objective of preferences read preferences, unless another form was asked for.
/// \throws UsageError for options that belong to another objective or loss, or that contradict each other
void check_objective_options(TrainOptions& options);

}  // namespace fsdp
