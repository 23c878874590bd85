#pragma once
// What all parts of a training job hold.
#include <string>

#include "apps/finetune/run_setup.hpp"
#include "lib/base/log.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/training/record/step_progress.hpp"
#include "lib/training/step/trainer.hpp"

namespace fsdp::detail {

struct RunContext {
  ProcessGroup& world;
  const Logger& log;
  const RunSetup& setup;
  ModelRuntime& runtime;
  Trainer& trainer;
  ProgressLine& progress;
  std::string products;  ///< what multiplies matrices, on rank 0: Ops::product_way()

  RunManifest manifest() const {
    auto manifest = manifest_of(setup, trainer.state(), world.size());
    manifest.products = products;
    if (const auto& quantize = runtime.decoder().options.quantize; quantize.enabled())
      manifest.data["quantize"] = quantization_to_json(quantize);
    if (runtime.has_adapters()) {
      manifest.data["weights"] = runtime.base().directory;
      manifest.data["weights_hash"] = runtime.base().hash;
      manifest.data["adapter"] =
          adapter_config_to_json(setup.config, runtime.decoder().options.lora, runtime.base().directory);
    }
    return manifest;
  }
  /// One of --eval-every's validations belongs to the state as it is now.
  bool validates_here() const {
    const auto& options = setup.options;
    return options.eval_every > 0 && trainer.state().step % options.eval_every == 0 && setup.validates();
  }
  double current_lr() const { return setup.schedule.at(std::max<std::int64_t>(1, trainer.state().step)); }
};

}  // namespace fsdp::detail
