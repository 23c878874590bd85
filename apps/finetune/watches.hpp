#pragma once
// The observers of a training job that watch its ranks: how they stand, which is slow, whose numbers are wrong.
#include <nlohmann/json.hpp>

#include "apps/finetune/reports/describe.hpp"
#include "apps/finetune/reports/memory_reporter.hpp"
#include "apps/finetune/reports/run_record.hpp"
#include "apps/finetune/run_setup.hpp"
#include "lib/bf16/sniff_test.hpp"
#include "lib/training/run/run_clock.hpp"
#include "lib/training/watch/pace_observer.hpp"
#include "lib/training/watch/state_verifier.hpp"
#include "lib/training/watch/status_writer.hpp"

namespace fsdp::detail {

/// They observe steps in this order.
struct Watches {
  /// Collective. \throws RuntimeFailure where the first of --sniff-every's tests finds a wrong rank
  Watches(const RunContext& context, RunRecord& record, RunClock& clock, MemoryReporter& memory)
      : status(context.world, context.setup.directory, context.setup.device.backend.get(),
               context.setup.device.device.index(), record, context.log),
        pace({context.world, context.setup.device.backend.get(), context.setup.device.device.index(), context.progress,
              context.log, [&record](const nlohmann::json& line) { record.add_metrics(line); },
              context.setup.options.straggler_every_seconds, context.setup.options.exclude_file}),
        verifier({context.runtime, context.trainer, clock, context.log, context.setup.options.verify_every,
                  context.setup.options.exclude_file, describe_arithmetic(context.setup, context.runtime)}),
        sniff({context.runtime, clock, context.log,
               context.setup.batches.micro_batch_size * context.setup.train_data->tokens_per_row(),
               context.setup.options.sniff_every, context.setup.options.exclude_file,
               describe_arithmetic(context.setup, context.runtime), [&memory] { memory.disturb(); }}) {}

  StatusWriter status;
  PaceObserver pace;
  StateVerifier verifier;
  SniffTest sniff;
};

}  // namespace fsdp::detail
