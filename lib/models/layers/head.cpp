// Final norm, head and cross-entropy. Logits exist for one chunk of tokens at a time, and their gradient overwrites
// them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <utility>

#include "lib/compute/ops/ops.hpp"
#include "lib/compute/tensor/memory_scope.hpp"
#include "lib/models/layers/decoder.hpp"
#include "lib/models/layers/token_adapters.hpp"

namespace fsdp {
namespace {

/// Rows of logits per chunk. With 510 rows and more, chunks cost no time; with 128 rows they cost 8 %.
constexpr std::int64_t kChunkRows = 512;
constexpr std::int64_t kSmallBuffer_bytes = std::int64_t{16} << 20;  // smaller logits need no chunks
/// The weight gradient is a sum over chunks; in 16 bits each addition rounds it, so there are few chunks.
constexpr std::int64_t kMaxChunks16 = 4;

/// \param room_bytes  for logits
std::int64_t chunk_rows(std::int64_t tokens, std::int64_t row_bytes, std::int64_t room_bytes, bool narrow) {
  auto rows = std::max(kChunkRows, std::max(kSmallBuffer_bytes, room_bytes) / row_bytes);
  if (narrow) rows = std::max(rows, (tokens + kMaxChunks16 - 1) / kMaxChunks16);
  const auto chunks = (tokens + rows - 1) / rows;
  return (tokens + chunks - 1) / chunks;  // equal chunks
}

class HeadLayer final : public DecoderHead {
 public:
  /// \param parameters  of the norm, then the weight
  HeadLayer(const Ops& ops, const Decoder& decoder, std::vector<int> parameters)
      : ops_(ops),
        config_(decoder.config),
        adapter_(ops, decoder),
        parameters_(std::move(parameters)),
        weight_(parameters_.size() - 1) {
    parameters_.insert(parameters_.end(), adapter_.parameters().begin(), adapter_.parameters().end());
  }
  const std::string& name() const override { return name_; }
  const std::vector<int>& parameters() const override { return parameters_; }

  void forward(LayerParams p, const StepContext& step, const at::Tensor& x_ND) override {
    const auto& batch = step.batch;
    const auto norm = final_norm(p, x_ND);
    for_chunks(p, batch, norm.out_ND, [&](std::int64_t first, std::int64_t rows, at::Tensor& logits) {
      ops_.cross_entropy(*step.sums, logits, batch.targets().narrow(first, rows), config_.vocab_size, 0.0);
    });
  }

  void forward_backward(LayerParams p, LayerGrads g, const StepContext& step, const at::Tensor& x_ND,
                        at::Tensor* grad_x_ND) override {
    const auto& batch = step.batch;
    const auto norm = final_norm(p, x_ND);
    const auto norms = g.first(weight_);
    const bool trains_norm = std::any_of(norms.begin(), norms.end(), [](const auto* slot) { return slot != nullptr; });
    const bool into_norm = grad_x_ND != nullptr || trains_norm;
    at::Tensor grad_norm_ND;
    if (into_norm) grad_norm_ND = at::empty_like(norm.out_ND);
    for_chunks(p, batch, norm.out_ND, [&](std::int64_t first, std::int64_t rows, at::Tensor& logits) {
      const auto slope = cap_slope(logits);
      ops_.cross_entropy(*step.sums, logits, batch.targets().narrow(first, rows), config_.vocab_size, step.grad_scale);
      if (slope.defined()) logits.mul_(slope);
      if (step.grad_scale.value == 0) logits.zero_();  // a scale of 0 means "no gradient" to cross_entropy
      const auto chunk_ND = norm.out_ND.narrow(0, first, rows);
      const auto through_adapter_ND =
          adapter_.backward(adapter_params(p), g.subspan(weight_ + 1), batch, first, chunk_ND, logits);
      if (into_norm) {
        auto part = grad_norm_ND.narrow(0, first, rows);
        ops_.linear_backward_into(part, logits, p[weight_]);
        if (through_adapter_ND.defined()) {
          GradSlot sum{part, true};
          ops_.accumulate(&sum, through_adapter_ND);
        }
      }
      ops_.weight_grad(g[weight_], logits, chunk_ND);
    });
    if (!into_norm) return;
    auto grad_ND = final_norm_backward(p, g, grad_norm_ND, x_ND, norm);
    if (grad_x_ND != nullptr) *grad_x_ND = std::move(grad_ND);
  }

  at::Tensor logits(LayerParams p, const at::Tensor& x_ND) const override {
    const auto normed_ND = final_norm(p, x_ND).out_ND;
    auto all = ops_.linear(normed_ND, p[weight_]);
    adapter_.forward(adapter_params(p), {}, 0, normed_ND, all);
    auto logits = all.narrow(1, 0, config_.vocab_size).to(at::kFloat);
    cap_in_place(logits);
    return logits;
  }

 private:
  double cap() const { return config_.traits.logit_softcap; }

  void cap_in_place(at::Tensor& logits) const {
    if (cap() > 0) logits.div_(cap()).tanh_().mul_(cap());
  }

  /// Derivative of c tanh(logit / c), computed from its value; undefined without a soft cap.
  at::Tensor cap_slope(const at::Tensor& capped) const {
    if (cap() == 0) return {};
    return 1 - (capped / cap()).square_();
  }

  /// GPT's final norm has weight and bias, Llama's a weight only.
  bool is_layer_norm() const { return weight_ == 2; }
  LayerParams adapter_params(LayerParams p) const { return p.subspan(weight_ + 1); }

  NormResult final_norm(LayerParams p, const at::Tensor& x_ND) const {
    return is_layer_norm() ? ops_.add_layer_norm(x_ND, {}, {}, p[0], p[1], config_.layer_norm_eps)
                           : ops_.add_rms_norm(x_ND, {}, {}, p[0], detail::rms_norm_of(config_));
  }

  at::Tensor final_norm_backward(LayerParams p, LayerGrads g, const at::Tensor& grad_ND, const at::Tensor& x_ND,
                                 const NormResult& norm) const {
    const NormBackward backward{grad_ND, {}, x_ND, norm, p[0]};
    return is_layer_norm() ? ops_.layer_norm_backward(backward, {g[0], g[1], nullptr})
                           : ops_.rms_norm_backward(backward, {g[0], nullptr, nullptr});
  }

  template <typename Body>
  void for_chunks(LayerParams p, const MicroBatch& batch, const at::Tensor& x_ND, const Body& body) const {
    const auto& weight_VD = p[weight_];
    const auto n = x_ND.size(0);
    if (n == 0) return;
    const auto padded_vocab = weight_VD.size(0);
    const auto row_bytes = padded_vocab * static_cast<std::int64_t>(x_ND.element_size());
    // The cap and an adapter need more memory beside the logits than these.
    const bool alone = cap() == 0 && adapter_params(p).empty();
    const auto rows = chunk_rows(n, row_bytes, alone ? ops_.logits_bytes() : 0, x_ND.element_size() < 4);
    const MemoryScope scope(MemoryCategory::logits);
    auto buffer = at::empty({rows, padded_vocab}, x_ND.options());
    ops_.repeat((n + rows - 1) / rows, [&](std::int64_t chunk) {
      const auto first = chunk * rows, count = std::min(rows, n - first);
      auto logits = buffer.narrow(0, 0, count);
      const auto chunk_ND = x_ND.narrow(0, first, count);
      ops_.linear_into(logits, chunk_ND, weight_VD);
      adapter_.forward(adapter_params(p), batch, first, chunk_ND, logits);
      cap_in_place(logits);
      body(first, count, logits);
    });
  }

  const Ops& ops_;
  ModelConfig config_;
  detail::HeadAdapter adapter_;
  std::vector<int> parameters_;
  std::size_t weight_;  ///< place of the head's weight, behind the norm's
  std::string name_ = "head";
};

}  // namespace

std::unique_ptr<DecoderHead> detail::make_head(const Ops& ops, const Decoder& decoder, std::vector<int> parameters) {
  return std::make_unique<HeadLayer>(ops, decoder, std::move(parameters));
}

}  // namespace fsdp
