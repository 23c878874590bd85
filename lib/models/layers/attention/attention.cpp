#include "lib/models/layers/attention/attention.hpp"

#include <ATen/ops/empty.h>

#include <array>
#include <utility>

namespace fsdp::detail {
namespace {

struct MixerState final : LayerState {
  HeadsState heads;
  std::vector<at::Tensor> grads_in;  ///< gradients of the first projections' outputs, from backward_input() on
  LinearState in, out;
};

class Attention final : public Mixer {
 public:
  Attention(const BlockSite& site, const std::vector<Linear>& in, const Linear& out, OutputBias bias,
            std::unique_ptr<Heads> heads)
      : in_(site.group(in, 0)), out_(site, out, bias, 1), heads_(std::move(heads)) {
    for (const auto& matrix : in) widths_.push_back(matrix.rows);
  }

  Output forward(LayerParams p, const StepContext& step, at::Tensor in_ND,
                 std::unique_ptr<LayerState>* state) const override {
    MixerState s;
    const bool keep = state != nullptr;
    const auto& batch = step.batch;
    Output made;
    made.out_ND = out_.forward(
        p, batch, heads_->forward(p, batch, project(p, batch, in_ND, keep ? &s.in : nullptr), in_ND, s.heads, keep),
        keep ? &s.out : nullptr);
    if (keep) {
      *state = std::make_unique<MixerState>(std::move(s));
    } else {
      made.held = std::move(s.heads.out_NQ);
    }
    return made;
  }

  at::Tensor decode(LayerParams p, const at::Tensor& in_ND, std::span<const DecodePart> parts) const override {
    const MicroBatch batch{{}, {}, 1, in_ND.size(0), {}, 0};
    return out_.forward(p, batch, heads_->decode(p, project(p, batch, in_ND, nullptr), parts), nullptr);
  }

  at::Tensor backward_input(LayerParams p, LayerGrads g, const StepContext& step, at::Tensor grad_ND,
                            LayerState& state) const override {
    auto& s = static_cast<MixerState&>(state);
    const auto& batch = step.batch;
    const auto& out = out_.matrix();
    at::Tensor grad_heads_NQ;
    {
      const std::array grads_ND{std::move(grad_ND)};
      grad_heads_NQ = out.backward_input(p, g, batch, grads_ND, s.out);
      out.backward_weights(p, g, batch, grads_ND, heads_->output(s.heads), s.out);
    }
    s.grads_in = parts_of(heads_->backward(p, g, batch, std::move(grad_heads_NQ), s.heads));
    return in_.backward_input(p, g, batch, s.grads_in, s.in);
  }

  bool needs_input(LayerGrads g) const override { return in_.needs_input(g); }

  void backward_weights(LayerParams p, LayerGrads g, const StepContext& step, const at::Tensor& in_ND,
                        LayerState& state) const override {
    auto& s = static_cast<MixerState&>(state);
    in_.backward_weights(p, g, step.batch, s.grads_in, in_ND, s.in);
  }

  OutputBias output_bias_by() const override { return out_.bias_by(); }
  int output_bias() const override { return out_.bias_of_frame(); }

 private:
  /// Columns of the matrices.
  std::vector<at::Tensor> parts_of(const at::Tensor& all_NC) const {
    if (widths_.size() == 1) return {all_NC};
    std::vector<at::Tensor> parts;
    std::int64_t first = 0;
    for (const auto width : widths_) {
      parts.push_back(all_NC.narrow(1, first, width));
      first += width;
    }
    return parts;
  }

  at::Tensor project(LayerParams p, const MicroBatch& batch, const at::Tensor& in_ND, LinearState* keep) const {
    std::int64_t width = 0;
    for (const auto one : widths_) width += one;
    auto all_NC = at::empty({in_ND.size(0), width}, in_ND.options());
    auto parts = parts_of(all_NC);
    in_.forward(p, batch, in_ND, parts, keep, in_.biases(p));
    return all_NC;
  }

  LinearGroup in_;
  OutputProjection out_;
  std::unique_ptr<Heads> heads_;
  std::vector<std::int64_t> widths_;
};

}  // namespace

std::unique_ptr<Mixer> make_attention(const BlockSite& site, const std::vector<Linear>& in, Linear out, OutputBias bias,
                                      std::unique_ptr<Heads> heads) {
  return std::make_unique<Attention>(site, in, out, bias, std::move(heads));
}

}  // namespace fsdp::detail
