// The head's loss: cross-entropy of each chunk of logits, which their gradient overwrites.
#include <memory>
#include <utility>

#include "lib/compute/ops/ops.hpp"
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
    ops_.cross_entropy(*step.sums, logits_NV, targets, chunks_.vocabulary(), scale);
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
