#include "apps/finetune/dry_run.hpp"

#include <fmt/format.h>

#include <optional>

#include "apps/finetune/describe.hpp"
#include "apps/finetune/memory_watch.hpp"
#include "lib/base/error.hpp"
#include "lib/engine/fsdp/mesh.hpp"
#include "lib/files/read/source.hpp"
#include "lib/planning/memory/device.hpp"
#include "lib/ranks/fake_group.hpp"

namespace fsdp::detail {
namespace {

void say_whether_weights_are_there(const RunSetup& setup, const Logger& log) {
  if (setup.restart || setup.options.model.directory.empty()) return;
  try {
    open_source(setup.options.model.directory);
  } catch (const Error& error) {
    log.warning(fmt::format("the weights are not there yet, training will need them: {}", error.what()));
  }
}

}  // namespace

void dry_run(ProcessGroup& world, const RunSetup& setup, const Logger& log) {
  const auto& sharding = setup.options.sharding;
  (void)plan_optimizer(setup.options);  // what it refuses
  std::optional<GpuSpec> gpu;
  if (setup.device.backend != nullptr) gpu = gpu_of(setup.device.backend->info(setup.device.device.index()));
  const auto fake_world = make_fake_world({world.size(), setup.ranks_on_node, world.rank()}, [&](ProcessGroup& group) {
    make_mesh(group, sharding.sharding, sharding.shard_group_size);
  });
  {
    const MemoryRecorder recorder(setup.device.backend != nullptr);
    ModelRuntime runtime(*fake_world, setup.config, sharding,
                         make_meta_device(gpu, recorder.tape(), std::make_shared<WorkLog>(), 1),
                         setup.batches.accumulation_steps);
    describe_run(world, setup, runtime, agree_on_products(world, runtime, log), log);
  }
  if (setup.train_data) MemoryWatch(world, setup, log).predict();
  if (world.rank() == 0) say_whether_weights_are_there(setup, log);
}

}  // namespace fsdp::detail
