#pragma once
// Operations by kernels that make one pass over memory where plain operators make many. What a kernel does not take (a
// type, rows that do not lie one after the other, tensors of the host) is AtenOps' to do, and all of it where there are
// no kernels.
#include <memory>

#include "lib/compute/ops/aten_ops.hpp"
#include "lib/compute/ops/fused_kernels.hpp"

namespace fsdp {

/// The environment does not say FSDP_CUDA_KERNELS=off: plain operators to compare with.
bool wants_fused_kernels();

class FusedOps : public AtenOps, private StepDecider {
 public:
  /// \param kernels  of `device`; null: none
  FusedOps(at::Device device, std::shared_ptr<const fused::Kernels> kernels);
  bool joins_products() const override { return has_kernels(); }
  const StepDecider* step_decider() const override { return has_kernels() ? this : nullptr; }
  at::Tensor dropout_keys(const DropoutPlace& place, std::int64_t rows_per_sample, std::uint64_t step) const override;
  double sum_squares(std::span<const GradPart> parts) const override;
  void adamw(const AdamWUpdate& update) const override;
  void publish(std::span<const PublishedRows> rows) const override;
  void widen(std::span<const WidenedRows> rows) const override;
  at::Tensor embed(const at::Tensor& token_VD, const at::Tensor& position_PD, const at::Tensor& ids_N,
                   RopePlace place) const override;
  void embed_backward(at::Tensor* grad_token_VD, at::Tensor* grad_position_PD, const at::Tensor& grad_ND,
                      const at::Tensor& ids_N, const RopePlace& place) const override;
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
  Fp8Matrix fp8_cast(const at::Tensor& x_RC, const at::Tensor& largest, Fp8Format format, Fp8Sides sides,
                     Fp8Matrix made) const override;
  at::Tensor fp8_columns(const at::Tensor& rows_RC) const override;
  void rope(at::Tensor& x_NC, std::int64_t heads, std::int64_t head_size, const RopeTable& table,
            const RopePlace& place, bool inverse) const override;
  void cross_entropy(LossSum& sum, at::Tensor& logits_NV, const at::Tensor& targets_N, std::int64_t vocab,
                     const GradScale& grad_scale) const override;

 protected:
  /// Queries in blocks, each against the keys that one of its queries sees (query_blocks.hpp): what lies behind a
  /// window costs nothing, and only a block's scores are held. The backward makes its probabilities once more. With
  /// dropout, and without kernels, by its formula.
  at::Tensor row_attention(const at::Tensor& qkv_NC, const AttentionShape& shape,
                           std::unique_ptr<AttentionState>* state) const override;
  at::Tensor row_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const at::Tensor& out_ND,
                                    const AttentionShape& shape, std::unique_ptr<AttentionState> state) const override;
  bool attends_in_blocks(const at::Tensor& qkv_NC, const AttentionShape& shape) const;
  /// In which type: float32 where there is no product of others into float32.
  virtual at::ScalarType block_type(at::ScalarType dtype) const { return dtype; }
  /// out (+)= a @ b, 3-D. `out` is of the factors' type, or float32 and then not rounded in between.
  virtual void batched_product(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool add) const;
  bool has_kernels() const { return kernels_ != nullptr; }
  void dequantize_into(at::Tensor& out_OI, const Nf4Matrix& matrix) const override;
  at::Tensor dropout_mask(const at::Tensor& keys_N, std::int64_t columns, double probability,
                          at::ScalarType dtype) const override;
  /// Gradients of q, k and v, [B, heads, L, head_size] with any strides, as rows of [q | k | v]; those of q and k are
  /// turned back where `rotation` is given.
  at::Tensor pack_heads(std::array<at::Tensor, 3> parts, const AttentionShape& shape, const Rotation* rotation) const;

 private:
  at::Tensor device_sum_squares(std::span<const GradPart> parts) const override;
  at::Tensor decide(const StepSums& sums) const override;
  StepOutcome outcome_of(const at::Tensor& decision) const override;
  /// Kernels take these tensors, of one type, each contiguous; undefined ones are passed over.
  bool takes(std::initializer_list<const at::Tensor*> tensors) const;
  bool takes_fp8(const at::Tensor& x_RC) const;
  /// Both with the same distance between rows.
  bool takes_gated(const at::Tensor& gate_NF, const at::Tensor& up_NF) const;
  void gated_pass(GateActivation gate, const at::Tensor& out_NF, const at::Tensor& gate_NF, const at::Tensor& up_NF,
                  bool backward) const;
  NormResult norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D, const at::Tensor& gamma_D,
                  const at::Tensor& beta_D, const RmsNorm& kind) const;
  at::Tensor norm_backward(const NormBackward& norm, const NormGrads& grads, const NormAgain* again) const;
  bool takes_norm(const NormBackward& norm) const;
  /// A pass whose sums by column go into the slot.
  void column_pass_into(GradSlot* slot, fused::ColumnPassKind kind, const at::Tensor& x_ND, const at::Tensor& y_ND,
                        at::Tensor* out_ND) const;
  /// A sequence or several of them, of rows that lie one after the other.
  void attend_in_blocks(const at::Tensor& qkv_NC, const AttentionShape& shape, const at::Tensor& out_ND,
                        const at::Tensor& log_sums) const;
  void attend_in_blocks_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const at::Tensor& out_ND,
                                 const AttentionShape& shape, const at::Tensor& log_sums,
                                 const at::Tensor& grad_qkv_NC) const;

  std::shared_ptr<const fused::Kernels> kernels_;
};

}  // namespace fsdp
