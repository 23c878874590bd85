#pragma once
// Trains a small minGPT on thread ranks for a few steps and keeps all values that tests compare.
#include "tests/support/engine_params.hpp"
#include "tests/unit/engine/fsdp/engine_setup.hpp"

#include <ATen/core/grad_mode.h>

#include "lib/engine/optim/optimizer.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/engine/sharding/trace.hpp"
#include "lib/ranks/thread_group.hpp"

namespace fsdp::test {

inline ShardingOptions sharding_of(const Setup& setup) {
  const auto& policy = setup.policy;
  ShardingOptions options;
  static_cast<ShardingPolicy&>(options) = policy;
  options.freeze = setup.freeze;
  options.lora = setup.lora;
  options.quantize = setup.quantize;
  options.compute_dtype = setup.compute_dtype;
  options.shard_group_size = setup.shard_group_size;
  options.wrap = parse_wrap(setup.wrap);
  options.forward_prefetch = policy.forward_prefetch;
  options.param_dtype = policy.precision.param_dtype;
  options.reduce_dtype = policy.precision.reduce_dtype;
  options.buffer_dtype = policy.precision.buffer_dtype;
  options.master_dtype = policy.precision.master_dtype;
  options.cpu_offload = policy.cpu_offload;
  if (!setup.scratch.empty()) options.offload_optimizer = {OffloadConfig::Place::nvme, setup.scratch, 4096};
  options.offload_parameters = policy.offload_parameters;
  options.host_staged = !setup.peer_memory;
  return options;
}

/// One rank of a training run.
class RigRank {
 public:
  RigRank(const Setup& setup, ProcessGroup& world, Outcome& outcome)
      : setup_(setup),
        world_(world),
        outcome_(outcome),
        runtime_(world, setup.model, sharding_of(setup), {}, setup.accumulation),
        engine_(&runtime_.engine()) {
    optimizer_ = make_optimizer({host_ops(), engine_params(*engine_), setup.optimizer, nullptr, runtime_.store()});
    for (std::size_t i = 0; i < engine_->num_parameters(); ++i) {
      const auto range = engine_->range(i);
      auto shard = engine_->shard(i, Access::update);
      shard.values().narrow(0, 0, range.num_rows).copy_(setup.weights[i].narrow(0, range.first_row, range.num_rows));
      shard.finish();
    }
    engine_->sync_parameters();
    if (setup.trace) engine_->observers().add(trace_);
  }

  void train() {
    for (int step = 0; step < setup_.steps; ++step) train_step(step);
    const auto rank = static_cast<std::size_t>(world_.rank());
    outcome_.counts[rank] = engine_->counts();
    outcome_.traces[rank] = trace_.events_json(world_.rank());
    if (world_.rank() == 0) outcome_.used_peer_memory = engine_->uses_peer_memory();
    for (std::size_t i = 0; i < engine_->num_parameters(); ++i) {
      const auto shard = engine_->shard(i, Access::read);
      collect(outcome_.parameters[i], shard.values(), i);
    }
  }

  Engine& engine() { return *engine_; }
  const Decoder& decoder() const { return runtime_.decoder(); }

  MicroBatch batch_of(const StepRows& rows, std::int64_t first, std::int64_t count) const {
    MicroBatch batch;
    batch.rows = count;
    batch.length = rows.ids.size(1);
    batch.ids_N = rows.ids.narrow(0, first, count).reshape({-1});
    batch.targets_N = rows.targets.narrow(0, first, count).reshape({-1});
    if (rows.keys.defined()) batch.sample_keys = rows.keys.narrow(0, first, count);
    return batch;
  }

 private:
  void train_step(int step) {
    const auto rows = setup_.rows(step);
    const double tokens = static_cast<double>(rows.targets.ge(0).sum().item<std::int64_t>());
    StepSums sum;
    for (int m = 0; m < setup_.accumulation; ++m) {
      const auto [first, count] = part(rows.ids.size(0), m * world_.size() + world_.rank());
      const auto loss = engine_->forward_backward(batch_of(rows, first, count), {m == 0, m == setup_.accumulation - 1},
                                                  setup_.loss_scale / tokens);
      sum.nats += loss.nats;
      sum.weight += loss.weight;
    }
    std::vector<double> by_rank(static_cast<std::size_t>(world_.size()), 0.0);
    by_rank[static_cast<std::size_t>(world_.rank())] = sum.weight == 0 ? 0.0 : sum.nats / sum.weight;
    world_.all_reduce(by_rank, Reduce::sum);
    const double loss = world_.all_reduce(sum.nats, Reduce::sum) / tokens;
    const double norm = engine_->gradient_norm() / setup_.loss_scale;
    if (world_.rank() == 0) {
      outcome_.losses.push_back(loss);
      outcome_.rank_losses.push_back(by_rank);
      outcome_.norms.push_back(norm);
    }
    if (step + 1 == setup_.steps) collect_gradients();
    // The formula of torch.nn.utils.clip_grad_norm_.
    const double divisor = setup_.loss_scale / std::min(1.0, setup_.clip / (norm + 1e-6));
    optimizer_->begin_step();
    for (const auto& params : engine_->parameter_groups(UnitPass::update)) {
      std::vector<at::Tensor> gradients;
      for (const auto i : params) gradients.push_back(engine_->gradient(i));
      optimizer_->step_part(params, gradients, setup_.lr, {.divisor = divisor});
    }
    engine_->sync_parameters();
  }

  std::pair<std::int64_t, std::int64_t> part(std::int64_t rows, int index) const {
    if (setup_.share.empty()) {
      const std::int64_t parts = setup_.accumulation * world_.size();
      return {rows * index / parts, rows * (index + 1) / parts - rows * index / parts};
    }
    std::int64_t first = 0;
    for (int i = 0; i < index; ++i) first += setup_.share[static_cast<std::size_t>(i)];
    return {first, setup_.share[static_cast<std::size_t>(index)]};
  }

  /// Call before the optimizer's step, which may scale gradients in place.
  void collect_gradients() {
    for (const auto& params : engine_->parameter_groups(UnitPass::read_gradients)) {
      for (const auto i : params) {
        if (engine_->layout(i).trainable) collect(outcome_.gradients[i], engine_->gradient(i), i);
      }
    }
  }

  /// Replica 0 writes its rows; then every replica must hold the same bits, and zeros in the padding.
  void collect(at::Tensor& full, const at::Tensor& shard, std::size_t param) {
    const auto range = engine_->range(param);
    const auto mine = shard.narrow(0, 0, range.num_rows).to(full.scalar_type());  // frozen parameters may have 16 bits
    auto place = full.narrow(0, range.first_row, range.num_rows);
    if (runtime_.mesh().replicate.rank() == 0) place.copy_(mine);
    world_.barrier();
    CHECK(same_bits(place, mine));
    CHECK(shard.narrow(0, range.num_rows, shard.size(0) - range.num_rows).count_nonzero().item<std::int64_t>() == 0);
  }

  const Setup& setup_;
  ProcessGroup& world_;
  Outcome& outcome_;
  ModelRuntime runtime_;
  Engine* engine_;
  TraceRecorder trace_;
  std::unique_ptr<Optimizer> optimizer_;
};

inline Outcome train(const Setup& setup, const std::function<void(RigRank&)>& afterwards = {}) {
  Outcome outcome;
  outcome.counts.resize(static_cast<std::size_t>(setup.ranks));
  outcome.traces.resize(static_cast<std::size_t>(setup.ranks));
  for (const auto& weight : setup.weights) {
    outcome.parameters.push_back(at::zeros_like(weight));
    outcome.gradients.push_back(at::zeros_like(weight));
  }
  run_thread_ranks(setup.ranks, setup.ranks_per_node == 0 ? setup.ranks : setup.ranks_per_node,
                   [&](ProcessGroup& world) {
                     const at::NoGradGuard no_grad;
                     RigRank rank(setup, world, outcome);
                     rank.train();
                     if (afterwards) afterwards(rank);
                   });
  return outcome;
}

}  // namespace fsdp::test
