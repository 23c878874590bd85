#include "apps/finetune/start/initial_weights.hpp"

#include <fmt/format.h>

#include <chrono>
#include <string>

#include "apps/finetune/start/restore.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/error.hpp"
#include "lib/flight/flight_recorder.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/state/ignored_inputs.hpp"
#include "lib/training/state/load/load.hpp"
#include "lib/training/step/initialize.hpp"

namespace fsdp::detail {
namespace {

/// Loads weights and logs where they come from and how long it took. \param load  loads the weights
template <typename Load>
void tell_weights(ProcessGroup& world, const std::string& directory, const Logger& log, const Load& load) {
  const auto start = std::chrono::steady_clock::now();
  load();
  world.barrier();
  log.info(fmt::format("weights   {}   {:.1f} s", directory, seconds_since(start)));
}

/// Loads the base weights from their folder, and adapters from a checkpoint, from peft's files, or newly made.
std::optional<RestartPoint> fill_adapters(ProcessGroup& world, const RunSetup& setup, ModelRuntime& runtime,
                                          Trainer* trainer, const Logger& log) {
  const auto& options = setup.options;
  auto directory = options.model.directory;
  if (setup.restart) {
    require_kind(*setup.restart->checkpoint, /*adapters_only=*/true);
    const auto& saved = setup.restart->manifest.data;
    if (directory.empty()) directory = saved.value("weights", std::string());
    const BaseWeights base{directory, saved.value("weights_hash", std::string())};
    tell_weights(world, directory, log, [&] { load_base(runtime, base, setup.restart->candidates.front()); });
    return restore(world, setup, runtime, trainer, log);
  }
  if (directory.empty())
    throw UsageError("--lora-rank needs the weights that adapters are for: --model DIR or ORG/NAME");
  tell_weights(world, directory, log, [&] { load_weights(runtime, directory, options.model.new_rows); });
  if (options.adapter.empty()) {
    log.warnings_of_all(adapter_left_out(directory));
    initialize_added_parameters(runtime, options.seed);
  } else {
    log.warnings_of_all(load_adapter(runtime, options.adapter));
    log.info("adapter   " + options.adapter);
  }
  return std::nullopt;
}

}  // namespace

std::optional<RestartPoint> fill_weights(ProcessGroup& world, const RunSetup& setup, ModelRuntime& runtime,
                                         Trainer* trainer, const Logger& log) {
  const auto& options = setup.options;
  const FlightWork work(world.recorder(), "load the weights");
  if (runtime.has_adapters()) return fill_adapters(world, setup, runtime, trainer, log);
  if (setup.restart) return restore(world, setup, runtime, trainer, log);
  if (options.model.directory.empty()) {
    initialize_parameters(runtime, options.seed);
    return std::nullopt;
  }
  tell_weights(world, options.model.directory, log,
               [&] { load_weights(runtime, options.model.directory, options.model.new_rows); });
  if (setup.config.score_is_new) initialize_added_parameters(runtime, options.seed);
  log.warnings_of_all(adapter_left_out(options.model.directory));
  return std::nullopt;
}

Ignored ignored_in_folders(ProcessGroup& world, const RunSetup& setup) {
  const auto& options = setup.options;
  Ignored ignored;
  run_agreed(world, [&] {
    if (world.rank() != 0) return;
    const auto& model = options.model.directory;
    if (!model.empty() && !setup.restart) ignored.add(ignored_in_model(model, setup.tokenizer.name == model));
    if (!options.adapter.empty()) ignored.add(ignored_in_adapter(options.adapter));
  });
  return ignored;
}

}  // namespace fsdp::detail
