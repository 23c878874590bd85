#include "lib/planning/memory/measurement.hpp"

#include <algorithm>
#include <array>

#include "lib/compute/tensor/host_allocator.hpp"
#include "lib/training/step/initialize.hpp"
#include "lib/training/step/trainer.hpp"

namespace fsdp {

MemoryMeasurement measure_memory(ProcessGroup& world, const MemoryRequest& request, const DeviceChoice& device) {
  constexpr int kSteps = 3;  // as many as the prediction simulates
  const auto& options = request.options;
  const auto batches = plan_batches(options, request.job.ranks);
  ModelRuntime runtime(world, request.config, options.sharding, device, plan_step(options, batches));
  const RandomLoader reader(kSteps * batches.rows_per_step, request.tokens_per_row, request.config.vocab_size,
                            request.documents, options.objective.has_preferences(), options.objective.judges_answers());
  TrainerOptions trainer_options;
  trainer_options.batches = batches;
  trainer_options.schedule = plan_schedule(options, kSteps);
  trainer_options.optimizer = plan_optimizer(options);
  trainer_options.fisher_samples = 1;
  trainer_options.clip_grad_norm = options.clip_grad_norm;
  trainer_options.seed = options.seed;
  trainer_options.objective = plan_objective(options);
  Trainer trainer(runtime, reader, trainer_options);
  initialize_parameters(runtime, options.seed);
  if (device.backend != nullptr) device.backend->reset_peak(device.device.index());
  reset_host_memory_peak();
  if (trainer.optimizer().is_choosing_child()) {  // one batch of the pass needs as much memory as all of them
    trainer.measure_fisher([] { return false; });
    trainer.choose_child();
  }
  StepReport step;
  for (int i = 0; i < kSteps; ++i) step = trainer.step(batches.rows_per_step, [] { return false; });
  std::array<double, 6> worst{static_cast<double>(step.peak_memory_bytes),
                              static_cast<double>(step.reserved_bytes),
                              static_cast<double>(step.alloc_retries),
                              static_cast<double>(step.peak_rss_bytes),
                              0,
                              0};
  if (device.backend != nullptr) {
    const auto memory = device.backend->memory(device.device.index());
    worst[1] = static_cast<double>(memory.reserved_peak_bytes);
    worst[4] = static_cast<double>(memory.num_ooms);
    worst[5] = static_cast<double>(device.backend->info(device.device.index()).total_bytes);
  }
  world.all_reduce(worst, Reduce::max);
  const auto whole = [](double value) { return static_cast<std::int64_t>(value); };
  return {whole(worst[0]), whole(worst[1]), whole(worst[5]), whole(worst[2]),
          whole(worst[4]), whole(worst[3]), step.seconds};
}

}  // namespace fsdp
