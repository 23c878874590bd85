#pragma once
// Operations on the CPU: kernels of lib/compute/kernels, and products by MKL or oneDNN.
#include <array>

#include "lib/compute/ops/ops.hpp"

namespace fsdp {

/// Rows of at most this many tokens use batched matrix products for attention (3 % faster in float32, 7-13 % in bf16
/// than flash attention at 255 tokens); longer ones use ATen's flash kernel, which never holds L x L scores.
inline constexpr std::int64_t kShortRow = 512;

class CpuOps : public Ops {
 public:
  at::Device device() const override { return at::kCPU; }
  bool on_host() const override { return true; }
  std::string product_way(at::ScalarType dtype) const override;
  double sum_squares(std::span<const GradPart> parts) const override;
  void sum_sources(const at::Tensor& out, std::int64_t n, std::span<const void* const> sources, at::ScalarType dtype,
                   bool accumulate) const override;
  void update(const ElementwiseUpdate& update) const override;
  void count_bits(const GradPart& part, BitRange range, std::span<double> counts) const override;
  void blockwise(const BlockwiseUpdate& update) const override;
  void blockwise_edges(const BlockwiseUpdate& update, const at::Tensor& largest) const override;
  void adafactor_statistics(const AdafactorUpdate& update) const override;
  void adafactor_update_size(const AdafactorUpdate& update) const override;
  void adafactor_apply(const AdafactorUpdate& update) const override;
  at::Tensor embed(const at::Tensor& token_VD, const at::Tensor& position_PD, const at::Tensor& ids_N,
                   TokenPositions place) const override;
  void embed_backward(at::Tensor* grad_token_VD, at::Tensor* grad_position_PD, const at::Tensor& grad_ND,
                      const at::Tensor& ids_N, const TokenPositions& place) const override;
  NormResult add_layer_norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D,
                            const at::Tensor& gamma_D, const at::Tensor& beta_D, double eps) const override;
  NormResult add_rms_norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D,
                          const at::Tensor& gamma_D, const RmsNorm& kind) const override;
  at::Tensor layer_norm_backward(const NormBackward& norm, const NormGrads& grads,
                                 const NormAgain* again = nullptr) const override;
  at::Tensor rms_norm_backward(const NormBackward& norm, const NormGrads& grads,
                               const NormAgain* again = nullptr) const override;
  at::Tensor bias_gelu(at::Tensor& pre_NF, const at::Tensor& bias_F) const override;
  void bias_gelu_backward(at::Tensor& grad_NF, const at::Tensor& pre_NF, GradSlot* grad_bias_F,
                          at::Tensor* again_NF = nullptr) const override;
  at::Tensor gated(GateActivation gate, const at::Tensor& gate_NF, const at::Tensor& up_NF) const override;
  void gated_backward(GateActivation gate, at::Tensor& grad_NF, at::Tensor& gate_NF, at::Tensor& up_NF) const override;
  void add_bias(at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& bias_D) const override;
  void bias_grad(GradSlot* slot, const at::Tensor& grad_ND) const override;
  void dropout(at::Tensor& x_ND, const at::Tensor& keys_N, double probability) const override;
  at::Tensor fp8_largest(const at::Tensor& x_RC) const override;
  at::Tensor fp8_columns(const at::Tensor& rows_RC) const override;
  Fp8Matrix fp8_cast(const at::Tensor& x, const at::Tensor& largest, Fp8Format format, Fp8Sides sides,
                     Fp8Matrix made) const override;
  void rope(at::Tensor& x_NC, std::int64_t heads, std::int64_t head_size, const RopeTable& table,
            const TokenPositions& place, bool inverse) const override;
  void cross_entropy(StepSums& sums, at::Tensor& logits_NV, const Targets& targets, std::int64_t vocab,
                     const GradScale& grad_scale) const override;

 protected:
  at::Tensor row_attention(const at::Tensor& qkv_NC, const AttentionShape& shape,
                           std::unique_ptr<AttentionState>* state) const override;
  at::Tensor row_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const at::Tensor& out_ND,
                                    const AttentionShape& shape, std::unique_ptr<AttentionState> state) const override;
  void dequantize_into(at::Tensor& out_OI, const Nf4Matrix& matrix) const override;
  void product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) const override;
  at::Tensor blended_product(const at::Tensor& x, double beta, const at::Tensor& a, const at::Tensor& b,
                             double alpha) const override;
  void add_converted(at::Tensor& to, const at::Tensor& from) const override;
  /// ATen's flash attention. \param logsumexp  float32 [B, H, L], written for the backward
  virtual at::Tensor flash(const at::Tensor& qkv_NC, const AttentionShape& shape, at::Tensor& logsumexp) const;
  virtual at::Tensor flash_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const at::Tensor& out_ND,
                                    const AttentionShape& shape, const at::Tensor& logsumexp) const;

 private:
  /// launch() for bodies that accumulate column sums: each thread has its own copy of `columns`; copies are added in
  /// order.
  template <std::size_t N, typename Body>
  void launch_with_columns(std::int64_t rows, std::array<float*, N> columns, std::int64_t dim, const Body& body) const;
  /// Attention with a window or a score cap, one block of queries at a time; keeps nothing for the backward.
  at::Tensor band(const at::Tensor& qkv_NC, const AttentionShape& shape) const;
  at::Tensor band_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const AttentionShape& shape) const;
  at::Tensor short_rows(const at::Tensor& qkv_NC, const AttentionShape& shape, at::Tensor& probs_BHLL) const;
  at::Tensor short_rows_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const AttentionShape& shape,
                                 const at::Tensor& probs_BHLL) const;
};

}  // namespace fsdp
