#pragma once
// A small minGPT job, set up as fsdp-finetune does, for tests on thread ranks.
#include "tests/support/reproducible_products.hpp"
#include "tests/support/small_model.hpp"
#include "tests/support/torch_doctest.hpp"

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/ranks/thread_group.hpp"
#include "lib/token_files/token_file_writer.hpp"
#include "lib/training/data/training_data.hpp"
#include "lib/training/step/initialize.hpp"
#include "lib/training/step/trainer.hpp"

namespace fsdp::test {

/// Writes a token file with 30 rows of 9 ids.
inline std::filesystem::path write_small_rows(const std::filesystem::path& file) {
  constexpr std::int32_t kRows = 30, kIds = 9;
  TokenFileNotes notes;
  notes.vocab_size = 61;
  const auto writer = write_packed_rows(file, kIds, notes);
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < kRows * (kIds + 1); ++i) ids.push_back((7 * i + i * i / 5) % 61);
  writer->add(ids);
  writer->finish();
  return file;
}

inline TrainingData one_source(TokenLoader rows, std::uint64_t seed) {
  std::vector<TrainingSource> sources;
  sources.push_back({"data", "data.h5", std::move(rows)});
  return TrainingData(std::move(sources), {.seed = seed});
}

struct SmallJob {
  explicit SmallJob(std::filesystem::path rows) : data(std::move(rows)) {}
  std::filesystem::path data;  ///< file made by write_small_rows()
  ModelConfig model = small_model();
  ShardingOptions sharding;
  std::int64_t micro_batch_size = 2;
  int accumulation_steps = 1;
  double lr = 1e-2;
  OptimizerOptions optimizer;
  DeviceChoice device = {};
  std::shared_ptr<const Objective> objective = std::make_shared<const Objective>();
};

/// Runtime, data and trainer of one rank; the weights are initialized from a fixed seed.
class SmallJobRank {
 public:
  SmallJobRank(ProcessGroup& world, const SmallJob& job)
      : runtime(world, job.model, job.sharding, job.device,
                {job.accumulation_steps, takes_bf16_gradients(job.optimizer)}),
        loader(one_source(TokenLoader(job.data, {0, job.model.block_size}, job.model.vocab_size), 5)) {
    const auto rows = job.micro_batch_size * world.size() * job.accumulation_steps;
    LrSchedule schedule;
    schedule.peak = job.lr;
    schedule.total_steps = 10;
    trainer = std::make_unique<Trainer>(runtime, loader,
                                        TrainerOptions{{job.micro_batch_size, rows, job.accumulation_steps},
                                                       schedule,
                                                       job.optimizer,
                                                       false,
                                                       1.0,
                                                       5,
                                                       0,
                                                       job.objective});
    initialize_parameters(runtime, 5);
  }
  StepReport step() {
    return trainer->step(1'000'000, [] { return false; });
  }

  ModelRuntime runtime;
  TrainingData loader;
  std::unique_ptr<Trainer> trainer;
};

/// Trains and returns the reports of rank 0.
inline std::vector<StepReport> train_small_job(const SmallJob& job, int ranks, int steps) {
  std::vector<StepReport> reports;
  run_thread_ranks(ranks, ranks, [&](ProcessGroup& world) {
    SmallJobRank rank(world, job);
    for (int i = 0; i < steps; ++i) {
      const auto report = rank.step();
      if (world.rank() == 0) reports.push_back(report);
    }
  });
  return reports;
}

/// Copies of the master weights and the optimizer states, assembled from the rows of all ranks.
struct FullState {
  std::vector<at::Tensor> master_weights;
  std::map<std::string, std::vector<at::Tensor>> states;  ///< by key
};

/// Call on every rank with the same `state`.
inline void collect_state(SmallJobRank& rank, FullState& state) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto& engine = rank.runtime.engine();
  const auto& optimizer = rank.trainer->optimizer();
  state.master_weights.resize(engine.num_parameters());
  for (std::size_t i = 0; i < engine.num_parameters(); ++i) {
    const auto put = [&](std::vector<at::Tensor>& tensors, const OptimizerState& part) {
      tensors.resize(engine.num_parameters());
      auto& full = tensors[i];
      const auto values = part.values.get();
      if (!full.defined()) full = at::zeros(part.shape, values.options());
      full.narrow(0, part.first_row, part.num_rows).copy_(values.narrow(0, 0, part.num_rows));
    };
    const auto range = engine.range(i);
    const auto shard = engine.shard(i, Access::read);
    put(state.master_weights,
        {"", engine.layout(i).shape, engine.stored_master_weight(i), range.first_row, range.num_rows});
    for (const auto& part : optimizer.states(i)) put(state.states[part.key], part);
  }
}

}  // namespace fsdp::test
