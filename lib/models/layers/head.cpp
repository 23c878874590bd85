// The head's loss: cross-entropy of each chunk of logits, which their gradient overwrites.
#include <ATen/ops/empty.h>

#include <memory>
#include <utility>

#include "lib/compute/ops/ops.hpp"
#include "lib/compute/tensor/sequences.hpp"
#include "lib/models/layers/decoder.hpp"
#include "lib/models/layers/logit_chunks.hpp"

namespace fsdp {
namespace {

class HeadLayer final : public DecoderHead {
 public:
  HeadLayer(const Ops& ops, detail::LogitChunks chunks, const std::vector<std::string>& groups)
      : ops_(ops), chunks_(std::move(chunks)), sums_(StepSums::names_of_groups(groups)) {}
  const std::string& name() const override { return name_; }
  const std::vector<int>& parameters() const override { return chunks_.parameters(); }
  std::vector<std::string> sums() const override { return sums_; }

  void forward(LayerParams p, const StepContext& step, const at::Tensor& x_ND) override {
    const auto targets = step.batch.targets();
    at::Tensor losses_N;  // of a joint loss
    chunks_.forward(p, step.batch, x_ND, [&](std::int64_t first, at::Tensor& logits_NV) {
      if (step.batch.joint != nullptr) return look(step.batch, first, logits_NV, losses_N);
      add_loss(*step.sums, targets, first, logits_NV, 0.0);
    });
    if (losses_N.defined()) join(step, losses_N);
  }

  void forward_backward(LayerParams p, LayerGrads g, const StepContext& step, const at::Tensor& x_ND,
                        at::Tensor* grad_x_ND) override {
    const bool is_joint = step.batch.joint != nullptr;
    auto targets = step.batch.targets();
    at::Tensor losses_N;
    StepSums of_slopes;  // a joint loss is added by join(): what its slopes make of the losses is no loss
    detail::LogitChunks::Body before;
    if (is_joint) {
      before = [&](std::int64_t first, at::Tensor& logits_NV) { look(step.batch, first, logits_NV, losses_N); };
    }
    const auto body = [&](std::int64_t first, at::Tensor& logits_NV) {
      if (is_joint && first == 0) targets.weights_N = join(step, losses_N);
      add_loss(is_joint ? of_slopes : *step.sums, targets, first, logits_NV, step.grad_scale);
      if (step.grad_scale.value == 0) logits_NV.zero_();  // a scale of 0 means "no gradient" to cross_entropy
    };
    chunks_.forward_backward(p, g, step.batch, x_ND, grad_x_ND, body, before);
  }

  at::Tensor logits(LayerParams p, const at::Tensor& x_ND) const override { return chunks_.all(p, x_ND); }

 private:
  void add_loss(StepSums& sums, const Targets& targets, std::int64_t first, at::Tensor& logits_NV,
                const GradScale& scale) const {
    ops_.cross_entropy(sums, logits_NV, targets.narrow(first, logits_NV.size(0)), chunks_.vocabulary(), scale);
  }

  /// Keeps the losses of a chunk's targets.
  void look(const MicroBatch& batch, std::int64_t first, at::Tensor& logits_NV, at::Tensor& losses_N) const {
    const auto count = logits_NV.size(0);
    StepSums unweighted;  // and thus of no use
    at::Tensor part_N;
    ops_.cross_entropy(unweighted, logits_NV, Targets(batch.targets_N.narrow(0, first, count)), chunks_.vocabulary(),
                       0.0, &part_N);
    if (!losses_N.defined()) losses_N = at::empty({batch.rows * batch.length}, part_N.options());
    losses_N.narrow(0, first, count).copy_(part_N);
  }

  /// Adds the joint loss. \return the weights of targets by which the sum of their losses has its gradient
  at::Tensor join(const StepContext& step, at::Tensor losses_N) const {
    const auto& batch = step.batch;
    if (batch.weights_N.defined()) losses_N = losses_N.mul(batch.weights_N);
    const auto slopes_S = batch.joint->join(batch, sum_by_sequence(batch, losses_N), *step.sums);
    auto weights_N = spread_over_sequences(batch, slopes_S);
    return batch.weights_N.defined() ? weights_N.mul_(batch.weights_N) : weights_N;
  }

  const Ops& ops_;
  detail::LogitChunks chunks_;
  std::vector<std::string> sums_;
  std::string name_ = "head";
};

}  // namespace

std::unique_ptr<DecoderHead> detail::make_head(const Ops& ops, const Decoder& decoder, std::vector<int> parameters) {
  return std::make_unique<HeadLayer>(ops, LogitChunks(ops, decoder, std::move(parameters)), decoder.options.groups);
}

}  // namespace fsdp
