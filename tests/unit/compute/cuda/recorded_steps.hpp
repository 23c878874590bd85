#pragma once
// Steps of a small job with captured micro-batches (emulated_recorder.hpp) and without.
#include "tests/support/emulated_ops.hpp"
#include "tests/support/emulated_recorder.hpp"
#include "tests/support/small_job.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/support/tensor_compare.hpp"

#include <ATen/ops/arange.h>

#include <cstring>
#include <string>

#include "lib/models/config/quantize_config.hpp"

namespace fsdp::test {

struct Outcome {
  std::vector<StepReport> reports;
  FullState state;
  RecordingCounts counts;
};

using SharedRecorder = std::shared_ptr<const EmulatedRecorder>;

inline DeviceChoice recording_device(SharedRecorder recorder = std::make_shared<const EmulatedRecorder>()) {
  DeviceChoice device;
  device.ops = std::make_shared<EmulatedOps>(emulated::Order::shuffled, std::move(recorder));
  return device;
}

/// Fills codes and scales of 4-bit matrices, and initializes the adapters on them.
inline void fill_codes(ModelRuntime& runtime) {
  auto& engine = runtime.engine();
  for (std::size_t i = 0; i < engine.num_parameters(); ++i) {
    const auto& spec = runtime.decoder().parameters[i];
    if (spec.stands_for < 0) continue;
    const auto rows = engine.master_weight(i);
    const auto numbers = at::arange(rows.numel(), at::kLong).view(rows.sizes());
    rows.copy_(spec.storage == Storage::byte ? numbers * 37 % 256 : 0.03 + numbers % 7 * 0.005);
  }
  initialize_added_parameters(runtime, 5);  // computes DoRA's row norms
}

/// Makes six steps with different loss scales; the fourth has too few samples for full micro-batches.
inline Outcome train(SmallJob job, CudaGraphs graphs,
                     SharedRecorder recorder = std::make_shared<const EmulatedRecorder>()) {
  constexpr int kSteps = 6;
  job.device = recording_device(std::move(recorder));
  job.sharding.cuda_graphs = graphs;
  job.sharding.host_staged = true;  // keeps gradients in ordinary tensors
  Outcome outcome;
  run_thread_ranks(1, 1, [&](ProcessGroup& world) {
    SmallJobRank rank(world, job);
    if (job.sharding.quantize.enabled()) fill_codes(rank.runtime);
    for (int i = 0; i < kSteps; ++i) {
      rank.trainer->state().loss_scale = 1.0 / (3 + i);
      const auto samples = job.micro_batch_size * job.accumulation_steps;
      outcome.reports.push_back(
          rank.trainer->step(i == 3 && samples > 1 ? samples - 1 : samples, [] { return false; }));
    }
    collect_state(rank, outcome.state);
    outcome.counts = rank.runtime.engine().recording_counts();
  });
  return outcome;
}

inline bool same(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

inline void check_same(const Outcome& got, const Outcome& want) {
  REQUIRE(got.reports.size() == want.reports.size());
  for (std::size_t i = 0; i < want.reports.size(); ++i) {
    CAPTURE(i);
    CHECK(same(got.reports[i].loss, want.reports[i].loss));
    CHECK(same(got.reports[i].grad_norm, want.reports[i].grad_norm));
    CHECK(got.reports[i].tokens == want.reports[i].tokens);
  }
  for (std::size_t i = 0; i < want.state.master_weights.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(got.state.master_weights[i], want.state.master_weights[i]));
    for (const auto& [key, values] : want.state.states) {
      if (values[i].defined()) CHECK(same_bits(got.state.states.at(key)[i], values[i]));  // undefined if frozen
    }
  }
}

/// \param recorded  number of graphs, for the different shapes and positions of micro-batches in a step
inline void check(const SmallJob& job, std::int64_t recorded, std::int64_t replayed) {
  const auto want = train(job, CudaGraphs::off), got = train(job, CudaGraphs::on);
  CHECK(want.counts.recorded == 0);
  CHECK(got.counts.problem == std::string());
  CHECK(got.counts.refused == 0);
  CHECK(got.counts.recorded == recorded);
  CHECK(got.counts.replayed == replayed);
  check_same(got, want);
}

inline ModelConfig small_llama() {
  auto config = small_model();
  config.architecture = Architecture::llama;
  config.num_kv_heads = 1;
  config.head_size = 10;
  config.ffn_hidden_size = 32;
  return config;
}

}  // namespace fsdp::test
