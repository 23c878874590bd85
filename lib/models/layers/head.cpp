// The head's loss: cross-entropy of each chunk of logits, which their gradient overwrites.
#include <ATen/TensorOperators.h>
#include <ATen/ops/logsumexp.h>

#include <memory>
#include <utility>

#include "lib/compute/ops/ops.hpp"
#include "lib/models/layers/decoder.hpp"
#include "lib/models/layers/logit_chunks.hpp"

namespace fsdp {
namespace {

/// Of the squared logarithm of the softmax's denominator, which keeps logits near 0 (PaLM, Chowdhery et al., 2022).
constexpr double kZLoss = 1e-4;

class HeadLayer final : public DecoderHead {
 public:
  HeadLayer(const Ops& ops, detail::LogitChunks chunks) : ops_(ops), chunks_(std::move(chunks)) {}
  const std::string& name() const override { return name_; }
  const std::vector<int>& parameters() const override { return chunks_.parameters(); }
  std::vector<std::string> sums() const override { return {"z_loss"}; }

  void forward(LayerParams p, const StepContext& step, const at::Tensor& x_ND) override {
    chunks_.forward(p, step.batch, x_ND,
                    [&](std::int64_t first, at::Tensor& logits_NV) { add_loss(step, first, logits_NV, 0.0); });
  }

  void forward_backward(LayerParams p, LayerGrads g, const StepContext& step, const at::Tensor& x_ND,
                        at::Tensor* grad_x_ND) override {
    chunks_.forward_backward(p, g, step.batch, x_ND, grad_x_ND, [&](std::int64_t first, at::Tensor& logits_NV) {
      add_loss(step, first, logits_NV, step.grad_scale);
      if (step.grad_scale.value == 0) logits_NV.zero_();  // a scale of 0 means "no gradient" to cross_entropy
    });
  }

  at::Tensor logits(LayerParams p, const at::Tensor& x_ND) const override { return chunks_.all(p, x_ND); }

 private:
  void add_loss(const StepContext& step, std::int64_t first, at::Tensor& logits_NV, const GradScale& scale) const {
    const auto targets = step.batch.targets().narrow(first, logits_NV.size(0));
    const auto z_loss_NV = add_z_loss(*step.sums, logits_NV.narrow(1, 0, chunks_.vocabulary()), targets, scale);
    ops_.cross_entropy(*step.sums, logits_NV, targets, chunks_.vocabulary(), scale);
    if (z_loss_NV.defined()) logits_NV.narrow(1, 0, chunks_.vocabulary()).add_(z_loss_NV);
  }

  /// \return the gradient of the logits; undefined without a scale
  static at::Tensor add_z_loss(StepSums& sums, const at::Tensor& logits_NV, const Targets& targets,
                               const GradScale& scale) {
    const auto wide_NV = logits_NV.to(at::kFloat);
    const auto z_N1 = wide_NV.logsumexp(1, /*keepdim=*/true);
    const auto counts_N1 = targets.ids_N.ge(0).unsqueeze(1);
    sums.add("z_loss", (z_N1.square() * counts_N1).sum(at::kDouble) * kZLoss);
    if (scale.value == 0) return {};
    auto factor_N1 = z_N1 * counts_N1 * (2 * kZLoss);
    factor_N1 = scale.on_device.defined() ? factor_N1 * scale.on_device : factor_N1 * scale.value;
    return (wide_NV - z_N1).exp_().mul_(factor_N1).to(logits_NV.scalar_type());
  }

  const Ops& ops_;
  detail::LogitChunks chunks_;
  std::string name_ = "head";
};

}  // namespace

std::unique_ptr<DecoderHead> detail::make_head(const Ops& ops, const Decoder& decoder, std::vector<int> parameters) {
  return std::make_unique<HeadLayer>(ops, LogitChunks(ops, decoder, std::move(parameters)));
}

}  // namespace fsdp
