#include "lib/training/objectives/objective.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <array>
#include <stdexcept>

#include "lib/compute/tensor/sequences.hpp"

namespace fsdp {
namespace {

/// Joins nothing: where tensors have no values, and the few numbers of each sequence need no memory.
class WithoutValues final : public JointLoss {
 public:
  explicit WithoutValues(const Objective& objective) : objective_(objective) {}
  std::vector<std::string> sums() const override { return objective_.sums(); }
  const char* entropy_sum() const override { return objective_.entropy_sum(); }
  at::Tensor join(const MicroBatch&, const at::Tensor& nats_S, StepSums&) const override { return nats_S; }

 private:
  const Objective& objective_;
};

/// Keeps what would be joined.
class Recorder final : public JointLoss {
 public:
  at::Tensor join(const MicroBatch&, const at::Tensor& nats_S, StepSums&) const override {
    nats_S_ = nats_S;
    return nats_S;
  }
  const at::Tensor& nats_S() const { return nats_S_; }

 private:
  mutable at::Tensor nats_S_;
};

/// Calls `run` with the micro-batch, whose joint loss is the objective's if it has one.
template <class Run>
StepSums with_joint_loss(const Objective& objective, const ModelRuntime& runtime, MicroBatch& batch, const Run& run) {
  const WithoutValues none(objective);
  if (objective.joins_sequences())
    batch.joint = runtime.has_values() ? static_cast<const JointLoss*>(&objective) : &none;
  auto sums = run();
  batch.joint = nullptr;
  return sums;
}

}  // namespace

StepCounts Objective::weigh(MicroBatch& batch) const {
  const auto tokens = static_cast<double>(batch.num_targets);
  return {tokens, tokens};
}

at::Tensor Objective::join(const MicroBatch&, const at::Tensor&, StepSums&) const {
  throw std::logic_error("an objective that joins sequences without join()");
}

double share_of(const Objective& objective, std::string_view sum, double count, double targets) {
  const auto* entropies = objective.entropy_sum();
  return share_of(entropies != nullptr && sum == entropies ? targets : count);
}

StepSums sums_of(const Objective& objective, const Engine& engine) {
  auto sums = engine.no_sums();
  for (const auto& name : objective.sums()) sums.named.push_back({name});
  return sums;
}

StepCounts weigh(const Objective& objective, const ModelRuntime& runtime, MicroBatch& batch) {
  if (!objective.has_weights() || runtime.has_values()) return objective.weigh(batch);
  if (!objective.joins_sequences()) {
    batch.weights_N = at::empty_like(batch.targets_N, batch.targets_N.options().dtype(at::kFloat));
  } else {
    batch.targets_S = at::empty({std::ssize(sequences_of(batch))}, batch.targets_N.options().dtype(at::kDouble));
    batch.reference_S = at::empty_like(batch.targets_S);
    if (batch.mismatched != nullptr) batch.desirable_S = at::empty_like(batch.targets_S);
  }
  const auto tokens = static_cast<double>(batch.num_targets);
  return {tokens, tokens};
}

at::Tensor sequence_nats(ModelRuntime& runtime, MicroBatch& batch) {
  const Recorder recorder;
  batch.joint = &recorder;
  runtime.engine().evaluate(batch);
  batch.joint = nullptr;
  return recorder.nats_S();
}

void Divergence::add(const MicroBatch& batch) {
  auto& mismatched = *batch.mismatched;
  const auto nats_S = sequence_nats(runtime_, mismatched);
  if (mismatched.rows == 0 || !runtime_.has_values()) return;
  differences_.push_back((nats_S + mismatched.reference_S).sum().neg());
  sequences_ += static_cast<double>(nats_S.numel());
}

double Divergence::mean() const {
  runtime_.synchronize();  // a rank that died shows here as an error
  std::array<double, 2> sums{0, sequences_};
  for (const auto& difference : differences_) sums[0] += difference.item<double>();
  runtime_.world().all_reduce(sums, Reduce::sum);
  const double mean = sums[0] * share_of(sums[1]);
  return mean < 0 ? 0 : mean;  // what is not finite shows in the loss
}

StepSums forward_backward(const Objective& objective, ModelRuntime& runtime, MicroBatch& batch,
                          MicroBatchPosition place, double grad_scale) {
  return with_joint_loss(objective, runtime, batch,
                         [&] { return runtime.engine().forward_backward(batch, place, grad_scale); });
}

StepSums evaluate(const Objective& objective, ModelRuntime& runtime, MicroBatch& batch) {
  return with_joint_loss(objective, runtime, batch, [&] { return runtime.engine().evaluate(batch); });
}

}  // namespace fsdp
