#pragma once
// The plan of a training run, derived from its options and checked before anything is allocated. Each option by itself
// is in the range that its row in the programs' tables states, and goes with the others
// (apps/common/check_options.hpp); this file combines them with ranks and rows.
#include <cstdint>
#include <filesystem>
#include <memory>

#include "lib/engine/fsdp/engine.hpp"
#include "lib/engine/optim/lr_schedule.hpp"
#include "lib/engine/optim/optimizer.hpp"
#include "lib/training/objectives/objective.hpp"
#include "lib/training/step/train_options.hpp"

namespace fsdp {

/// How sequences are split over steps, micro-batches and ranks.
struct BatchPlan {
  std::int64_t micro_batch_size = 0;  ///< on one rank
  std::int64_t rows_per_step = 0;     ///< over all ranks and micro-batches
  int accumulation_steps = 1;
};

/// False: only evaluated.
bool trains(const TrainOptions& options);

/// \param ranks  of the job
/// \throws RequestError naming the numbers that do not fit together and the nearest that do
BatchPlan plan_batches(const TrainOptions& options, int ranks);

/// Optimizer steps of the whole run (those before a restart included).
std::int64_t plan_steps(const TrainOptions& options, std::int64_t num_rows, std::int64_t rows_per_step);

/// \throws RequestError about settings of the optimizer that contradict each other
OptimizerOptions plan_optimizer(const TrainOptions& options);
/// \return the function that the job's steps minimize
std::shared_ptr<const Objective> plan_objective(const TrainOptions& options);
/// Describes the job's steps for the engine.
StepShape plan_step(const TrainOptions& options, const BatchPlan& batches);

/// \throws RequestError when warm-up and decay are longer than the schedule
LrSchedule plan_schedule(const TrainOptions& options, std::int64_t total_steps);

/// OUT/RUN, which may be deeper (a/b) but is below OUT. \throws RequestError
std::filesystem::path run_directory(const TrainOptions& options);

}  // namespace fsdp
