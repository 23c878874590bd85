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
    if (step.batch.joint == nullptr)
      return chunks_.forward(p, step.batch, x_ND, [&](std::int64_t first, at::Tensor& logits_NV) {
        add_loss(step, step.batch.targets(), first, logits_NV, 0.0);
      });
    at::Tensor losses_N;
    chunks_.forward(p, step.batch, x_ND,
                    [&](std::int64_t first, at::Tensor& logits_NV) { look(step.batch, first, logits_NV, losses_N); });
    if (losses_N.defined()) join(step, losses_N);
  }

  void forward_backward(LayerParams p, LayerGrads g, const StepContext& step, const at::Tensor& x_ND,
                        at::Tensor* grad_x_ND) override {
    auto targets = step.batch.targets();
    const bool is_joint = step.batch.joint != nullptr;
    at::Tensor losses_N;
    bool is_joined = false;
    const auto body = [&](std::int64_t first, at::Tensor& logits_NV) {
      if (is_joint && !is_joined) targets.weights_N = join(step, losses_N);
      is_joined = true;
      if (is_joint) {
        StepSums other;  // the loss is the joint one: this is its derivatives times the losses
        ops_.cross_entropy(other, logits_NV, targets.narrow(first, logits_NV.size(0)), chunks_.vocabulary(),
                           step.grad_scale);
      } else {
        add_loss(step, targets, first, logits_NV, step.grad_scale);
      }
      if (step.grad_scale.value == 0) logits_NV.zero_();  // a scale of 0 means "no gradient" to cross_entropy
    };
    detail::LogitChunks::Body before;
    if (is_joint) {
      before = [&](std::int64_t first, at::Tensor& logits_NV) { look(step.batch, first, logits_NV, losses_N); };
    }
    chunks_.forward_backward(p, g, step.batch, x_ND, grad_x_ND, body, before);
  }

  at::Tensor logits(LayerParams p, const at::Tensor& x_ND) const override { return chunks_.all(p, x_ND); }

 private:
  void add_loss(const StepContext& step, const Targets& targets, std::int64_t first, at::Tensor& logits_NV,
                const GradScale& scale) const {
    ops_.cross_entropy(*step.sums, logits_NV, targets.narrow(first, logits_NV.size(0)), chunks_.vocabulary(), scale);
  }

  /// Keeps the losses of a chunk's targets.
  void look(const MicroBatch& batch, std::int64_t first, const at::Tensor& logits_NV, at::Tensor& losses_N) const {
    const auto count = logits_NV.size(0);
    const auto part_N = ops_.target_losses(logits_NV, batch.targets().narrow(first, count), chunks_.vocabulary());
    if (!losses_N.defined()) losses_N = at::empty({batch.rows * batch.length}, part_N.options());
    losses_N.narrow(0, first, count).copy_(part_N);
  }

  /// Adds the joint loss, and those of groups. \return the weights of targets by which their losses have its gradient
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
