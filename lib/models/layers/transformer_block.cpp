#include "lib/models/layers/transformer_block.hpp"

#include <ATen/TensorOperators.h>

#include <functional>
#include <optional>
#include <stdexcept>
#include <utility>

#include "lib/compute/ops/ops.hpp"
#include "lib/models/layers/dropout.hpp"

namespace fsdp::detail {

BlockSite::BlockSite(const Ops& with, const Decoder& of, int block, const std::string& prefix)
    : ops(with), decoder(of), index(block), finder(of, block, prefix), first_adapter_place(dropout_place(block, 0)) {}

LinearGroup BlockSite::group(std::vector<Linear> matrices, std::uint64_t number) const {
  return {ops, decoder.options, std::move(matrices), first_adapter_place + number};
}

OutputProjection::OutputProjection(const BlockSite& site, Linear matrix, OutputBias bias, std::uint64_t number)
    : by_(bias),
      bias_(matrix.bias),
      matrix_(site.group({bias == OutputBias::in_sum_and_norm ? matrix.without_bias() : matrix}, number)) {}

at::Tensor OutputProjection::forward(LayerParams p, const MicroBatch& batch, const at::Tensor& x_NI,
                                     LinearState* keep) const {
  return matrix_.project(p, batch, x_NI, keep, by_ == OutputBias::in_product ? at_place(p, bias_) : at::Tensor());
}

// --- norms

BlockNorm::BlockNorm(const BlockSite& site, const std::string& module)
    : ops_(site.ops),
      weight_(module.empty() ? -1 : site.finder.find(module + ".weight")),
      bias_(module.empty() ? -1 : site.finder.find(module + ".bias")),
      eps_(site.decoder.config.layer_norm_eps),
      rms_(rms_norm_of(site.decoder.config)) {}

NormResult BlockNorm::forward(LayerParams p, const at::Tensor& x_ND, const at::Tensor& y_ND,
                              const at::Tensor& y_bias_D) const {
  if (bias_ < 0) return ops_.add_rms_norm(x_ND, y_ND, y_bias_D, at_place(p, weight_), rms_);
  return ops_.add_layer_norm(x_ND, y_ND, y_bias_D, at_place(p, weight_), at_place(p, bias_), eps_);
}

at::Tensor BlockNorm::backward(LayerParams p, LayerGrads g, const NormBackward& around, GradSlot* y_bias,
                               at::Tensor* normed_ND) const {
  if (!is_there()) {
    if (normed_ND != nullptr) *normed_ND = around.x_ND;
    return around.grad_ND + around.residual_ND;
  }
  std::optional<NormAgain> again;
  if (normed_ND != nullptr) again.emplace(NormAgain{at_place(p, bias_), *normed_ND});
  const NormBackward norm{around.grad_ND, around.residual_ND, around.x_ND, around.saved, at_place(p, weight_)};
  const NormGrads grads{at_place(g, weight_), at_place(g, bias_), y_bias};
  return bias_ < 0 ? ops_.rms_norm_backward(norm, grads, again ? &*again : nullptr)
                   : ops_.layer_norm_backward(norm, grads, again ? &*again : nullptr);
}

namespace {

/// Tensors that the frame and a half keep for the backward. The outputs of norms are not kept: the backward passes
/// compute them again.
struct BranchState {
  NormResult before;  ///< sum_ND: what the residual path carries around the half, also where there is no norm
  NormResult after;
  std::unique_ptr<LayerState> half;
};

/// State of both halves of a block.
struct BlockState final : LayerState {
  BranchState mixer, feed_forward;
};

/// A mixer and a feed-forward. How they are joined is the frame's, in run().
class FramedBlock : public DecoderBlock {
 public:
  const std::string& name() const final { return name_; }
  const std::vector<int>& parameters() const final { return parameters_; }

  at::Tensor forward(LayerParams p, const StepContext& step, const at::Tensor& x_ND,
                     std::unique_ptr<LayerState>* state) final {
    BlockState s;
    auto* keep = state != nullptr ? &s : nullptr;
    auto out_ND = run(p, step, x_ND, keep, [&](at::Tensor in_ND) {
      return mixer_->forward(p, step, std::move(in_ND), keep ? &keep->mixer.half : nullptr);
    });
    if (keep != nullptr) *state = std::make_unique<BlockState>(std::move(s));
    return out_ND;
  }

  at::Tensor decode(LayerParams p, const at::Tensor& x_ND, std::span<const DecodePart> parts) const final {
    const MicroBatch batch{{}, {}, 1, x_ND.size(0), {}, 0};
    return run(p, batch, x_ND, nullptr, [&](const at::Tensor& in_ND) {
      return BlockHalf::Output{mixer_->decode(p, in_ND, parts), {}};
    });
  }

 protected:
  using Mix = std::function<BlockHalf::Output(at::Tensor in_ND)>;

  FramedBlock(const BlockSite& site, std::unique_ptr<Mixer> mixer, std::unique_ptr<FeedForward> feed_forward)
      : ops_(site.ops),
        mixer_(std::move(mixer)),
        feed_forward_(std::move(feed_forward)),
        parameters_(block_parameters(site.decoder, site.index)),
        name_("block " + std::to_string(site.index)) {}

  /// The block, with mix(input) as its mixer. \param keep  null without a backward
  virtual at::Tensor run(LayerParams p, const StepContext& step, const at::Tensor& x_ND, BlockState* keep,
                         const Mix& mix) const = 0;

  const Ops& ops_;
  std::unique_ptr<Mixer> mixer_;
  std::unique_ptr<FeedForward> feed_forward_;

 private:
  std::vector<int> parameters_;
  std::string name_;
};

// --- one half after the other

/// A half with the norms around it.
class Branch {
 public:
  /// \param half  must outlive this object
  Branch(const BlockSite& site, const BlockHalf& half, BlockNorm before, BlockNorm after, std::uint64_t dropout)
      : ops_(site.ops),
        config_(site.decoder.config),
        half_(half),
        before_(std::move(before)),
        after_(std::move(after)),
        dropout_(dropout_place(site.index, dropout)) {}

  const BlockNorm& before() const { return before_; }

  /// Makes of the half's output what joins the residual sum. \return the bias to add to that sum; undefined: none
  /// \param keep  receives the state of the norm after the half; may be null
  at::Tensor settle(LayerParams p, const MicroBatch& batch, at::Tensor& out_ND, NormResult* keep) const {
    const auto bias = at_place(p, half_.output_bias());
    if (joins_at_once(batch)) return bias;
    if (bias.defined()) ops_.add_bias(out_ND, {}, bias);
    if (drops(config_, batch)) drop(ops_, out_ND, batch, dropout_, config_.dropout);
    if (!after_.is_there()) return {};
    auto normed = after_.forward(p, out_ND);
    out_ND = std::move(normed.out_ND);
    if (keep != nullptr) *keep = std::move(normed);
    return {};
  }

  /// The bias whose gradient the backward of the norm after the residual sum computes; -1: none.
  int bias_of_sum(const MicroBatch& batch) const {
    return computes_bias_gradient() && joins_at_once(batch) ? half_.output_bias() : -1;
  }

  struct Around {
    const at::Tensor& grad_ND;  ///< gradient of the sum that the half joined
    GradSlot* bias_before;      ///< gradient of the bias that the norm before the half has added; may be null
    bool has_bias_gradient;     ///< the half's own bias has got its gradient
  };

  /// \return the gradient of s.before.sum_ND, by the half and by the residual path
  at::Tensor backward(LayerParams p, LayerGrads g, const StepContext& step, const Around& around,
                      BranchState& s) const {
    auto grad_in_ND = half_.backward_input(p, g, step, into_half(p, g, step.batch, around, s), *s.half);
    at::Tensor in_ND;
    auto grad_x_ND = before_.backward(p, g, {grad_in_ND, around.grad_ND, s.before.sum_ND, s.before, {}},
                                      around.bias_before, half_.needs_input(g) ? &in_ND : nullptr);
    grad_in_ND.reset();
    s.before = {};
    half_.backward_weights(p, g, step, in_ND, *s.half);
    return grad_x_ND;
  }

 private:
  /// The half's output goes into the residual sum as it is, but for its bias.
  bool joins_at_once(const MicroBatch& batch) const { return !after_.is_there() && !drops(config_, batch); }
  bool computes_bias_gradient() const { return half_.output_bias_by() == OutputBias::in_sum_and_norm; }

  /// \return the gradient of the half's output
  at::Tensor into_half(LayerParams p, LayerGrads g, const MicroBatch& batch, const Around& around,
                       BranchState& s) const {
    auto grad_ND = around.grad_ND;
    if (after_.is_there())
      grad_ND = after_.backward(p, g, {grad_ND, {}, s.after.sum_ND, s.after, {}}, nullptr, nullptr);
    s.after = {};
    if (drops(config_, batch)) {
      grad_ND = grad_ND.clone();
      drop(ops_, grad_ND, batch, dropout_, config_.dropout);
    }
    if (computes_bias_gradient() && !around.has_bias_gradient)
      ops_.bias_grad(at_place(g, half_.output_bias()), grad_ND);
    return grad_ND;
  }

  const Ops& ops_;
  ModelConfig config_;
  const BlockHalf& half_;
  BlockNorm before_, after_;
  std::uint64_t dropout_;
};

class SequentialBlock final : public FramedBlock {
 public:
  SequentialBlock(const BlockSite& site, const BlockNorms& norms, std::unique_ptr<Mixer> mixer,
                  std::unique_ptr<FeedForward> feed_forward)
      : FramedBlock(site, std::move(mixer), std::move(feed_forward)),
        of_mixer_(site, *mixer_, norms.before_mixer, norms.after_mixer, kMixerDropout),
        of_feed_forward_(site, *feed_forward_, norms.before_feed_forward, norms.after_feed_forward,
                         kFeedForwardDropout) {}

  at::Tensor backward(LayerParams p, LayerGrads g, const StepContext& step, const at::Tensor& grad_ND,
                      std::unique_ptr<LayerState> state) override {
    auto& s = static_cast<BlockState&>(*state);
    const int joined = of_feed_forward_.before().is_there() ? of_mixer_.bias_of_sum(step.batch) : -1;
    const auto grad_sum_ND =
        of_feed_forward_.backward(p, g, step, {grad_ND, at_place(g, joined), false}, s.feed_forward);
    return of_mixer_.backward(p, g, step, {grad_sum_ND, nullptr, joined >= 0}, s.mixer);
  }

 private:
  at::Tensor run(LayerParams p, const StepContext& step, const at::Tensor& x_ND, BlockState* keep,
                 const Mix& mix) const override {
    auto norm = normed(p, x_ND);
    auto [mixed_ND, held_by_mixer] = mix(std::move(norm.out_ND));
    auto sum = join_mixer(p, step.batch, x_ND, std::move(mixed_ND), keep ? &keep->mixer.after : nullptr);
    auto [out_ND, held] =
        feed_forward_->forward(p, step, std::move(sum.out_ND), keep ? &keep->feed_forward.half : nullptr);
    const auto bias = of_feed_forward_.settle(p, step.batch, out_ND, keep ? &keep->feed_forward.after : nullptr);
    ops_.add_bias(out_ND, sum.sum_ND, bias);
    if (keep == nullptr) return out_ND;
    keep->mixer.before = std::move(norm);
    keep->feed_forward.before = std::move(sum);
    return out_ND;
  }

  /// \return what the mixer reads
  NormResult normed(LayerParams p, const at::Tensor& x_ND) const {
    if (of_mixer_.before().is_there()) return of_mixer_.before().forward(p, x_ND);
    NormResult same;
    same.sum_ND = same.out_ND = x_ND;
    return same;
  }

  /// \return the residual sum, and its norm, which the feed-forward reads
  NormResult join_mixer(LayerParams p, const MicroBatch& batch, const at::Tensor& x_ND, at::Tensor mixed_ND,
                        NormResult* keep) const {
    const auto bias = of_mixer_.settle(p, batch, mixed_ND, keep);
    if (of_feed_forward_.before().is_there()) return of_feed_forward_.before().forward(p, x_ND, mixed_ND, bias);
    NormResult joined;
    ops_.add_bias(mixed_ND, x_ND, bias);
    joined.sum_ND = joined.out_ND = std::move(mixed_ND);
    return joined;
  }

  Branch of_mixer_, of_feed_forward_;
};

// --- both halves side by side

class ParallelBlock final : public FramedBlock {
 public:
  ParallelBlock(const BlockSite& site, BlockNorm before_mixer, BlockNorm before_feed_forward,
                std::unique_ptr<Mixer> mixer, std::unique_ptr<FeedForward> feed_forward)
      : FramedBlock(site, std::move(mixer), std::move(feed_forward)),
        before_mixer_(std::move(before_mixer)),
        before_feed_forward_(std::move(before_feed_forward)) {
    const BlockHalf& mixing = *mixer_;
    for (const auto* half : {&mixing, static_cast<const BlockHalf*>(feed_forward_.get())})
      if (half->output_bias_by() != OutputBias::in_product)
        throw std::logic_error("a parallel block adds no bias: its halves do");
    if (site.decoder.config.dropout > 0) throw std::logic_error("a parallel block has no dropout");
  }

  at::Tensor backward(LayerParams p, LayerGrads g, const StepContext& step, const at::Tensor& grad_ND,
                      std::unique_ptr<LayerState> state) override {
    auto& s = static_cast<BlockState&>(*state);
    auto grad_in_ND = feed_forward_->backward_input(p, g, step, grad_ND, *s.feed_forward.half);
    at::Tensor in_ND;
    if (!before_feed_forward_.is_there()) {
      auto grad_x_ND = mixer_backward(p, g, step, grad_ND, grad_ND, s, {&grad_in_ND, &in_ND});
      feed_forward_->backward_weights(p, g, step, in_ND, *s.feed_forward.half);
      return grad_x_ND;
    }
    const auto grad_rest_ND =
        before_feed_forward_.backward(p, g, {grad_in_ND, grad_ND, s.mixer.before.sum_ND, s.feed_forward.before, {}},
                                      nullptr, feed_forward_->needs_input(g) ? &in_ND : nullptr);
    grad_in_ND.reset();
    s.feed_forward.before = {};
    feed_forward_->backward_weights(p, g, step, in_ND, *s.feed_forward.half);
    return mixer_backward(p, g, step, grad_ND, grad_rest_ND, s, {});
  }

 private:
  /// The other side of a norm that both halves read.
  struct Shared {
    const at::Tensor* grad_ND = nullptr;  ///< gradient of its output by the feed-forward
    at::Tensor* normed_ND = nullptr;      ///< receives its output
  };

  /// \param residual_ND  gradient of the block's input by other ways than the mixer
  /// \return the gradient of the block's input
  at::Tensor mixer_backward(LayerParams p, LayerGrads g, const StepContext& step, const at::Tensor& grad_ND,
                            const at::Tensor& residual_ND, BlockState& s, const Shared& shared) const {
    auto grad_in_ND = mixer_->backward_input(p, g, step, grad_ND, *s.mixer.half);
    if (shared.grad_ND != nullptr) grad_in_ND.add_(*shared.grad_ND);
    at::Tensor in_ND;
    const bool needs_input = mixer_->needs_input(g) || shared.normed_ND != nullptr;
    auto grad_x_ND = before_mixer_.backward(p, g, {grad_in_ND, residual_ND, s.mixer.before.sum_ND, s.mixer.before, {}},
                                            nullptr, needs_input ? &in_ND : nullptr);
    mixer_->backward_weights(p, g, step, in_ND, *s.mixer.half);
    if (shared.normed_ND != nullptr) *shared.normed_ND = std::move(in_ND);
    return grad_x_ND;
  }

  at::Tensor run(LayerParams p, const StepContext& step, const at::Tensor& x_ND, BlockState* keep,
                 const Mix& mix) const override {
    const bool shares_norm = !before_feed_forward_.is_there();
    auto norm1 = before_mixer_.forward(p, x_ND);
    const auto [mixed_ND, held_by_mixer] = mix(shares_norm ? norm1.out_ND : std::move(norm1.out_ND));
    NormResult norm2;
    if (!shares_norm) norm2 = before_feed_forward_.forward(p, x_ND);
    auto& in_ND = shares_norm ? norm1.out_ND : norm2.out_ND;
    auto [out_ND, held] = feed_forward_->forward(p, step, std::move(in_ND), keep ? &keep->feed_forward.half : nullptr);
    ops_.add_bias(out_ND, mixed_ND, {});
    ops_.add_bias(out_ND, x_ND, {});
    if (keep == nullptr) return out_ND;
    keep->mixer.before = std::move(norm1);
    keep->feed_forward.before = std::move(norm2);
    return out_ND;
  }

  BlockNorm before_mixer_, before_feed_forward_;
};

}  // namespace

std::unique_ptr<DecoderBlock> make_sequential_block(const BlockSite& site, const BlockNorms& norms,
                                                    std::unique_ptr<Mixer> mixer,
                                                    std::unique_ptr<FeedForward> feed_forward) {
  return std::make_unique<SequentialBlock>(site, norms, std::move(mixer), std::move(feed_forward));
}

std::unique_ptr<DecoderBlock> make_parallel_block(const BlockSite& site, const BlockNorm& before_mixer,
                                                  const BlockNorm& before_feed_forward, std::unique_ptr<Mixer> mixer,
                                                  std::unique_ptr<FeedForward> feed_forward) {
  return std::make_unique<ParallelBlock>(site, before_mixer, before_feed_forward, std::move(mixer),
                                         std::move(feed_forward));
}

}  // namespace fsdp::detail
