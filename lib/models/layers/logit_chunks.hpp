#pragma once
// Final norm and head of a decoder, without a loss.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "lib/compute/ops/op_types.hpp"
#include "lib/compute/tensor/layer.hpp"
#include "lib/models/layers/decoder.hpp"
#include "lib/models/layers/token_adapters.hpp"

namespace fsdp {

class Ops;

namespace detail {

/// Logits of a micro-batch, of which one chunk of tokens exists at a time, since all of them may need more memory than
/// the rest of the model. Shapes: N tokens of the head (MicroBatch::head_tokens_M), D embedding size, V rows of the
/// head's weight, of which those after the vocabulary are padding.
class LogitChunks {
 public:
  /// Work on the logits of tokens [first, first + N) among the head's, in the activations' dtype. For a backward it
  /// overwrites them with their gradient.
  using Body = std::function<void(std::int64_t first, at::Tensor& logits_NV)>;

  /// \param parameters  indices of the final norm's weight (and bias for LayerNorm; otherwise RMSNorm), then of the
  /// head's weight
  LogitChunks(const Ops& ops, const Decoder& decoder, std::vector<int> parameters);

  /// As the caller's parameters, then those of the head's adapter.
  const std::vector<int>& parameters() const { return parameters_; }
  std::int64_t vocabulary() const { return config_.outputs(); }
  bool has_scores() const { return config_.has_scores(); }
  /// Calls `body` chunk by chunk, in order. \param x_ND  let go after the norm, as below where nothing goes through it
  void forward(LayerParams p, const MicroBatch& batch, at::Tensor x_ND, const Body& body) const;
  /// The same, and the backward of each chunk while its logits exist.
  /// \param grad_x_ND  receives the gradient of x_ND; null: it is not wanted
  /// \param look  of a body that needs to know something of all chunks: sees each of them before the body does, and
  ///   changes no logits. Where there is one chunk, its logits are computed once
  void forward_backward(LayerParams p, LayerGrads g, const MicroBatch& batch, at::Tensor x_ND, at::Tensor* grad_x_ND,
                        const Body& body, const Body& look = {}) const;
  /// All logits at once, [N, vocabulary] in float32.
  at::Tensor all(LayerParams p, const at::Tensor& x_ND) const;

 private:
  double cap() const { return has_scores() ? 0 : config_.traits.logit_softcap; }
  void cap_in_place(at::Tensor& logits) const;
  at::Tensor cap_slope(const at::Tensor& capped) const;
  /// GPT's final norm has weight and bias, Llama's a weight only.
  bool is_layer_norm() const { return weight_ == 2; }
  LayerParams adapter_params(LayerParams p) const { return p.subspan(weight_ + 1); }
  NormResult final_norm(LayerParams p, const at::Tensor& x_ND) const;
  at::Tensor final_norm_backward(LayerParams p, LayerGrads g, const at::Tensor& grad_ND, const at::Tensor& x_ND,
                                 const NormResult& norm) const;
  void for_chunks(LayerParams p, const MicroBatch& batch, const at::Tensor& normed_ND, const Body& body,
                  const Body& look = {}) const;

  const Ops& ops_;
  ModelConfig config_;
  HeadAdapter adapter_;
  std::vector<int> parameters_;
  std::size_t weight_;  ///< place of the head's weight, after the norm's
};

}  // namespace detail
}  // namespace fsdp
