#pragma once
// Combinations of options that contradict each other or need one another. What depends on the model, the data or the
// ranks is checked in lib, where these are known.
#include "lib/training/step/train_options.hpp"

namespace fsdp {

/// Options of other optimizers than the chosen one, of master weights, and of a child. \throws UsageError
void check_optimizer_options(const TrainOptions& options);

/// Types of products that do not go with how weights are kept. \throws UsageError
void check_compute_dtype(const TrainOptions& options);

/// Options of adapters that contradict each other, or what else was asked for. \throws UsageError
void check_adapter_options(const TrainOptions& options);

/// Options of other schedules than the chosen one. \throws UsageError
void check_schedule_options(const TrainOptions& options);

}  // namespace fsdp
