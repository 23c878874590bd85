// Trains the model of model.hpp with fully sharded data parallelism, saves a sharded checkpoint and loads it:
//   mpiexec -n 2 my_model CHECKPOINT     on two ranks
//   my_model CHECKPOINT                  on one rank, which only loads the checkpoint of the two ranks
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "lib/base/process/scheduler.hpp"
#include "lib/base/types/error.hpp"
#include "lib/engine/fsdp/engine.hpp"
#include "lib/engine/optim/optimizer.hpp"
#include "lib/engine/sharding/wrap.hpp"
#include "lib/ranks/mpi_environment.hpp"
#include "lib/training/state/engine_shards.hpp"
#include "model.hpp"

namespace {

constexpr std::int64_t kSamples = 60;  // per step, over all ranks
constexpr int kSteps = 200;

/// The model on this job's ranks. The engine is the last member, because everything that it is given must outlive it.
struct Job {
  fsdp::ProcessGroup& world;
  fsdp::Mesh mesh;
  std::vector<std::unique_ptr<fsdp::Layer>> layers;
  std::unique_ptr<Loss> loss;
  std::optional<fsdp::Engine> engine;

  Job(fsdp::ProcessGroup& group, const fsdp::EnginePolicy& policy)
      : world(group), mesh(fsdp::make_mesh(group, policy.sharding, 0)) {
    mesh.connect([](fsdp::ProcessGroup& ranks) { return fsdp::make_host_collectives(ranks); });
    fsdp::EngineInput input;
    std::vector<fsdp::WrapInput> wrap;
    const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t columns, int block) {
      input.parameters.push_back({name, {rows, columns}});
      wrap.push_back({rows * columns, block});
      return static_cast<int>(wrap.size()) - 1;
    };
    layers.push_back(std::make_unique<First>("first", std::vector{add("first.weight", kWidth, kInputs, -1)}));
    for (int b = 0; b < kBlocks; ++b) {
      const auto name = "blocks." + std::to_string(b);
      const int up = add(name + ".up.weight", 2 * kWidth, kWidth, b);
      const int down = add(name + ".down.weight", kWidth, 2 * kWidth, b);
      layers.push_back(std::make_unique<Block>(name, std::vector{up, down}));
    }
    loss = std::make_unique<Loss>(add("head.weight", 1, kWidth, -1));  // a single row, so only one rank has it
    for (const auto& layer : layers) input.layers.push_back(layer.get());
    input.loss = loss.get();
    input.units = fsdp::make_units(wrap, fsdp::WrapPolicy());  // one unit for each block, one for the rest
    input.ops = &fsdp::host_ops();
    input.mesh = &mesh;
    engine.emplace(input, policy);
  }

  /// Fills the weights with values that do not depend on the number of ranks; scale 0 gives zeros.
  void initialize(double scale) {
    at::manual_seed(1);
    for (std::size_t i = 0; i < engine->num_parameters(); ++i) {
      const auto& shape = engine->layout(i).shape;
      const auto whole = at::randn(shape) * (scale / std::sqrt(static_cast<double>(shape[1])));
      const auto mine = engine->range(i);
      engine->master_weight(i).narrow(0, 0, mine.num_rows).copy_(whole.narrow(0, mine.first_row, mine.num_rows));
    }
    engine->sync_parameters();
  }

  /// Returns this rank's part of kSamples samples, starting at sample `first`.
  fsdp::MicroBatch batch(std::int64_t first) const {
    const auto begin = kSamples * world.rank() / world.size(), end = kSamples * (world.rank() + 1) / world.size();
    const auto ids = at::arange(first + begin, first + end, at::kInt);
    return {ids, at::zeros_like(ids), end - begin, 1, {}, 0, end - begin};
  }

  /// Returns the mean loss over all ranks' samples.
  double mean(const fsdp::StepSums& sum) const {
    return world.all_reduce(sum.nats, fsdp::Reduce::sum) / static_cast<double>(kSamples);
  }
};

void say(const fsdp::ProcessGroup& world, const std::string& what, double loss) {
  if (world.rank() == 0) std::printf("%-10s loss %.6f\n", what.c_str(), loss);
}

void train(fsdp::ProcessGroup& world, const std::string& checkpoint) {
  const at::NoGradGuard no_grad;
  const bool found = std::filesystem::exists(checkpoint);
  const fsdp::EnginePolicy policy;  // full shard, float32; lib/engine/sharding/policy.hpp lists the alternatives
  Job job(world, policy);
  auto& engine = *job.engine;
  job.initialize(1);
  std::vector<fsdp::OptimizerParam> params;
  for (std::size_t i = 0; i < engine.num_parameters(); ++i)
    params.push_back({engine.stored_master_weight(i), true, engine.layout(i), engine.range(i)});
  const auto optimizer =
      fsdp::make_optimizer({fsdp::host_ops(), params, fsdp::OptimizerOptions(), job.mesh.shard.collectives.get()});

  for (int step = 1; step <= kSteps && !found; ++step) {
    const auto sum = engine.forward_backward(job.batch(step * kSamples), {}, 1.0 / kSamples);
    const auto norm = engine.gradient_norm();
    std::vector<at::Tensor> gradients;
    for (std::size_t i = 0; i < engine.num_parameters(); ++i) gradients.push_back(engine.gradient(i));
    optimizer->step(gradients, 1e-3, std::max(1.0, norm));  // clipped to a norm of 1
    engine.sync_parameters();
    const auto loss = job.mean(sum);
    if (step == 1 || step % 50 == 0) say(world, "step " + std::to_string(step), loss);
  }
  if (!found) {
    say(world, "trained", job.mean(engine.evaluate(job.batch(0))));
    fsdp::save_shards(world, job.mesh, engine, optimizer.get(), checkpoint);
    job.initialize(0);
    say(world, "zeros", job.mean(engine.evaluate(job.batch(0))));
  }
  fsdp::load_shards(world, engine, optimizer.get(), checkpoint);
  say(world, "loaded", job.mean(engine.evaluate(job.batch(0))));
}

}  // namespace

int main(int argc, char** argv) {
  const bool launched = fsdp::launched_by_mpi();
  std::optional<fsdp::MpiEnvironment> mpi;
  try {
    if (argc != 2) throw fsdp::UsageError("give the folder of the checkpoint to write, or to read where it is there");
    if (launched) mpi.emplace(fsdp::MpiOptions());
    const auto world = launched ? mpi->world() : fsdp::make_single_group();
    train(*world, argv[1]);
    return 0;
  } catch (const fsdp::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    // Without this call, the other ranks would wait for this rank forever.
    if (mpi) mpi->abort_job(static_cast<int>(error.code()));
    return static_cast<int>(error.code());
  }
}
