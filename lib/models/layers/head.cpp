// The head's loss: cross-entropy of each chunk of logits, which their gradient overwrites. Shapes as in layer.hpp; N
// tokens of a chunk where there are logits.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <memory>
#include <utility>

#include "lib/compute/ops/ops.hpp"
#include "lib/compute/tensor/sequences.hpp"
#include "lib/models/layers/decoder.hpp"
#include "lib/models/layers/logit_chunks.hpp"

namespace fsdp {
namespace {

/// A model with one score has the score's negative as the loss of a target, of which a joint loss is a function.
/// \return float32 [N]: 0 where no target is
at::Tensor negative_scores(const Targets& targets, const at::Tensor& scores_NV) {
  return scores_NV.select(1, 0).to(at::kFloat).neg().mul_(targets.ids_N.ge(0));
}

/// Overwrites scores with the gradient of their weighted negatives.
void set_score_gradients(const Targets& targets, at::Tensor& scores_NV, const GradScale& scale) {
  auto gradients_N = targets.weights_N.neg().mul_(targets.ids_N.ge(0));
  scale.on_device.defined() ? gradients_N.mul_(scale.on_device) : gradients_N.mul_(scale.value);
  scores_NV.zero_();
  scores_NV.select(1, 0).copy_(gradients_N);
}

/// Keeps what belongs to the tokens of which the head computes logits.
at::Tensor of_head_tokens(const MicroBatch& batch, const at::Tensor& all) {
  return batch.head_tokens_M.defined() && all.defined() ? all.index_select(0, batch.head_tokens_M) : all;
}

Targets targets_of_head(const MicroBatch& batch) {
  const auto all = batch.targets();
  return {of_head_tokens(batch, all.ids_N), of_head_tokens(batch, all.weights_N), of_head_tokens(batch, all.groups_N)};
}

/// Gives all tokens what the head's tokens have, and 0 to the others.
at::Tensor of_all_tokens(const MicroBatch& batch, at::Tensor of_head) {
  if (!batch.head_tokens_M.defined()) return of_head;
  auto sizes = of_head.sizes().vec();
  sizes[0] = batch.rows * batch.length;
  return at::zeros(sizes, of_head.options()).index_copy_(0, batch.head_tokens_M, of_head);
}

class HeadLayer final : public DecoderHead {
 public:
  HeadLayer(const Ops& ops, detail::LogitChunks chunks, const std::vector<std::string>& groups)
      : ops_(ops),
        chunks_(std::move(chunks)),
        is_score_(chunks_.has_scores() && chunks_.vocabulary() == 1),
        is_classifier_(chunks_.has_scores() && !is_score_),
        sums_(StepSums::names_of_groups(groups)) {
    if (is_classifier_) sums_.emplace_back(kAccuracySum);
  }
  const std::string& name() const override { return name_; }
  const std::vector<int>& parameters() const override { return chunks_.parameters(); }
  std::vector<std::string> sums() const override { return sums_; }

  void forward(LayerParams p, const StepContext& step, const at::Tensor& x_ND) override {
    const auto targets = targets_of_head(step.batch);
    at::Tensor losses_M;  // of a joint loss
    chunks_.forward(p, step.batch, of_head_tokens(step.batch, x_ND), [&](std::int64_t first, at::Tensor& logits_MV) {
      if (step.batch.joint != nullptr) return look(step, targets, first, logits_MV, losses_M);
      add_loss(*step.sums, targets, first, logits_MV, 0.0);
    });
    if (losses_M.defined()) join(step, losses_M);
  }

  void forward_backward(LayerParams p, LayerGrads g, const StepContext& step, const at::Tensor& x_ND,
                        at::Tensor* grad_x_ND) override {
    const auto& batch = step.batch;
    const bool is_joint = batch.joint != nullptr;
    auto targets = targets_of_head(batch);
    at::Tensor losses_M;
    StepSums of_slopes;  // a joint loss is added by join(): what its slopes make of the losses is no loss
    detail::LogitChunks::Body before;
    if (is_joint) {
      before = [&](std::int64_t first, at::Tensor& logits_MV) { look(step, targets, first, logits_MV, losses_M); };
    }
    const auto body = [&](std::int64_t first, at::Tensor& logits_MV) {
      if (is_joint && first == 0) targets.weights_N = of_head_tokens(batch, join(step, losses_M));
      add_loss(is_joint ? of_slopes : *step.sums, targets, first, logits_MV, step.grad_scale);
      if (step.grad_scale.value == 0) logits_MV.zero_();  // a scale of 0 means "no gradient" to cross_entropy
    };
    at::Tensor grad_x_MD;
    auto* wanted = grad_x_ND == nullptr ? nullptr : &grad_x_MD;
    chunks_.forward_backward(p, g, batch, of_head_tokens(batch, x_ND), wanted, body, before);
    if (wanted != nullptr) *grad_x_ND = of_all_tokens(batch, std::move(grad_x_MD));
  }

  at::Tensor logits(LayerParams p, const at::Tensor& x_ND) const override { return chunks_.all(p, x_ND); }

 private:
  /// \param targets  of all tokens of the head
  void add_loss(StepSums& sums, const Targets& targets, std::int64_t first, at::Tensor& logits_NV,
                const GradScale& scale) const {
    const auto these = targets.narrow(first, logits_NV.size(0));
    if (is_score_) return set_score_gradients(these, logits_NV, scale);
    if (is_classifier_) {
      const auto right_N = logits_NV.narrow(1, 0, chunks_.vocabulary()).argmax(1).eq(these.ids_N);
      sums.add(kAccuracySum, right_N.sum(at::kDouble));
    }
    ops_.cross_entropy(sums, logits_NV, these, chunks_.vocabulary(), scale);
  }

  /// Keeps the losses of a chunk's targets.
  void look(const StepContext& step, const Targets& all, std::int64_t first, at::Tensor& logits_NV,
            at::Tensor& losses_M) const {
    const auto count = logits_NV.size(0);
    const Targets targets(all.ids_N.narrow(0, first, count));
    at::Tensor part_N;
    if (is_score_) {
      part_N = negative_scores(targets, logits_NV);
    } else {
      StepSums unweighted;  // and thus of no use
      ops_.cross_entropy(unweighted, logits_NV, targets, chunks_.vocabulary(), 0.0, &part_N);
      if (const auto* name = step.batch.joint->entropy_sum())
        step.sums->add(name, ops_.entropies(logits_NV, targets.ids_N, chunks_.vocabulary()).sum(at::kDouble));
    }
    if (!losses_M.defined()) losses_M = at::empty({all.ids_N.size(0)}, part_N.options());
    losses_M.narrow(0, first, count).copy_(part_N);
  }

  /// Adds the joint loss. \return the weights of targets by which the sum of their losses has its gradient, [N]
  at::Tensor join(const StepContext& step, const at::Tensor& losses_M) const {
    const auto& batch = step.batch;
    auto losses_N = of_all_tokens(batch, losses_M);
    if (batch.weights_N.defined()) losses_N = losses_N.mul(batch.weights_N);
    const auto slopes_S = batch.joint->join(batch, sum_by_sequence(batch, losses_N), *step.sums);
    auto weights_N = spread_over_sequences(batch, slopes_S);
    return batch.weights_N.defined() ? weights_N.mul_(batch.weights_N) : weights_N;
  }

  const Ops& ops_;
  detail::LogitChunks chunks_;
  bool is_score_, is_classifier_;
  std::vector<std::string> sums_;
  std::string name_ = "head";
};

}  // namespace

std::unique_ptr<DecoderHead> detail::make_head(const Ops& ops, const Decoder& decoder, std::vector<int> parameters) {
  return std::make_unique<HeadLayer>(ops, LogitChunks(ops, decoder, std::move(parameters)), decoder.options.groups);
}

}  // namespace fsdp
