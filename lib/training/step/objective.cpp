#include "lib/training/step/objective.hpp"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <stdexcept>

#include "lib/training/data/data_loader.hpp"

namespace fsdp {
namespace {

/// Multiplies the weights of each sequence's targets.
void scale_weights(const Ops& ops, MicroBatch& batch, std::span<const SequenceLoss> sequences,
                   std::span<const double> factors) {
  if (factors.size() != sequences.size()) throw std::logic_error("an objective that gives no slope for each sequence");
  auto factors_N = at::zeros({batch.rows * batch.length}, at::kFloat);
  for (std::size_t i = 0; i < sequences.size(); ++i)
    factors_N.narrow(0, sequences[i].first, sequences[i].length).fill_(factors[i]);
  factors_N = ops.to_device(factors_N);
  batch.weights_N = batch.weights_N.defined() ? batch.weights_N.mul(factors_N) : factors_N;
}

}  // namespace

double Objective::weigh(MicroBatch& batch) const { return static_cast<double>(batch.num_targets); }

std::vector<double> Objective::join(const MicroBatch&, std::span<const SequenceLoss>, StepSums&) const {
  throw std::logic_error("an objective that joins sequences without join()");
}

StepSums sums_of(const Objective& objective, const Engine& engine) {
  auto sums = engine.no_sums();
  for (const auto& name : objective.sums()) sums.named.push_back({name});
  return sums;
}

double weigh(const Objective& objective, const ModelRuntime& runtime, MicroBatch& batch) {
  if (!objective.has_weights() || runtime.has_values()) return objective.weigh(batch);
  batch.weights_N = at::empty_like(batch.targets_N, batch.targets_N.options().dtype(at::kFloat));
  return static_cast<double>(batch.num_targets);
}

StepSums forward_backward(const Objective& objective, ModelRuntime& runtime, MicroBatch& batch,
                          MicroBatchPosition place, double grad_scale) {
  auto& engine = runtime.engine();
  if (!objective.joins_sequences()) return engine.forward_backward(batch, place, grad_scale);
  auto sums = sums_of(objective, engine);
  const auto sequences = sequence_losses(runtime, batch);
  scale_weights(runtime.ops(), batch, sequences, objective.join(batch, sequences, sums));
  auto layers = engine.forward_backward(batch, place, grad_scale);
  // The loss is the joined one: these are its derivatives times the losses.
  layers.nats = layers.weight = 0;
  if (layers.pending.defined()) layers.pending.narrow(0, 0, 2).zero_();
  return sums += layers;
}

StepSums evaluate(const Objective& objective, ModelRuntime& runtime, const MicroBatch& batch) {
  if (!objective.joins_sequences()) return runtime.engine().evaluate(batch);
  auto sums = sums_of(objective, runtime.engine());
  objective.join(batch, sequence_losses(runtime, batch), sums);
  return sums;
}

}  // namespace fsdp
