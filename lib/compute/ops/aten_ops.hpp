#pragma once
// Operations by plain ATen operators on any device: the reference in tests, and the fallback without fused kernels.
// Sums over rows are float32.
#include "lib/compute/ops/ops.hpp"

namespace fsdp {

class AtenOps : public Ops {
 public:
  explicit AtenOps(at::Device device) : device_(device) {}
  at::Device device() const override { return device_; }
  bool on_host() const override { return false; }
  double sum_squares(std::span<const GradPart> parts) const override;
  // Offloaded tensors are updated by the host's kernels.
  void update(const ElementwiseUpdate& update) const override;
  void blockwise(const BlockwiseUpdate& update) const override;
  void blockwise_edges(const BlockwiseUpdate& update, const at::Tensor& largest) const override;
  void adafactor_statistics(const AdafactorUpdate& update) const override;
  void adafactor_update_size(const AdafactorUpdate& update) const override;
  void adafactor_apply(const AdafactorUpdate& update) const override;
  void sum_sources(const at::Tensor& out, std::int64_t n, std::span<const void* const> sources, at::ScalarType dtype,
                   bool accumulate) const override;
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
  void rope(at::Tensor& x_NC, std::int64_t heads, std::int64_t head_size, const RopeTable& table,
            const TokenPositions& place, bool inverse) const override;
  void cross_entropy(StepSums& sums, at::Tensor& logits_NV, const Targets& targets, std::int64_t vocab,
                     const GradScale& grad_scale) const override;

 protected:
  /// Holds the scores of all queries and keys at once.
  at::Tensor row_attention(const at::Tensor& qkv_NC, const AttentionShape& shape,
                           std::unique_ptr<AttentionState>* state) const override;
  at::Tensor row_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const at::Tensor& out_ND,
                                    const AttentionShape& shape, std::unique_ptr<AttentionState> state) const override;
  /// \return the Ops that updates tensors on the device of `x`; null: this one
  virtual const Ops* host_updater(const at::Tensor& x) const;
  void product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) const override;
  void add_converted(at::Tensor& to, const at::Tensor& from) const override;
  /// float32 [columns]
  virtual at::Tensor column_sums(const at::Tensor& x_ND) const;
  /// \return integer positions [n] of n rows
  virtual at::Tensor row_positions(std::int64_t n, const TokenPositions& place) const;
  virtual at::Tensor select_rows(const at::Tensor& from_PD, const at::Tensor& rows_N) const;
  /// \return log-softmax over columns, float32
  virtual at::Tensor log_softmax(const at::Tensor& logits_NV) const;
  /// \param stats  receives mean and rstd, float32 [N]
  virtual at::Tensor layer_norm(const at::Tensor& x_ND, const at::Tensor& gamma_D, const at::Tensor& beta_D,
                                NormResult& stats) const;
  /// \return gradients of x, gamma and beta
  virtual std::array<at::Tensor, 3> layer_norm_grads(const NormBackward& norm) const;
  /// \return factors of a dropout [keys, columns]: 0, or 1 / (1 - probability). Computed on the host, so that the mask
  /// is the same on every device.
  virtual at::Tensor dropout_mask(const at::Tensor& keys_N, std::int64_t columns, double probability,
                                  at::ScalarType dtype) const;

 private:
  at::Device device_;
};

}  // namespace fsdp
