#pragma once
// Operations by fused kernels, each of which makes one pass over memory where plain operators make many. AtenOps serves
// tensors that a kernel does not support (dtype, strides, host memory), and all tensors if there are no kernels.
#include <map>
#include <memory>
#include <utility>

#include "lib/compute/ops/aten_ops.hpp"
#include "lib/compute/ops/fused_kernels.hpp"

namespace fsdp {

/// False if the environment variable FSDP_CUDA_KERNELS is "off", which selects plain operators for comparison.
bool wants_fused_kernels();

class FusedOps : public AtenOps {
 public:
  /// \param kernels  kernels of `device`; may be null
  FusedOps(at::Device device, std::shared_ptr<const fused::Kernels> kernels);
  bool joins_products() const override { return has_kernels(); }
  bool decides() const override { return has_kernels(); }
  at::Tensor device_sum_squares(std::span<const GradPart> parts) const override;
  at::Tensor decide(const StepToDecide& step) const override;
  std::function<StepOutcome()> outcome_of(const at::Tensor& decision) const override;
  at::Tensor dropout_keys(const DropoutSeeds& place, std::int64_t rows_per_sample, std::uint64_t step) const override;
  double sum_squares(std::span<const GradPart> parts) const override;
  void adamw(const AdamWUpdate& update) const override;
  void update(const ElementwiseUpdate& update) const override;
  void blockwise(const BlockwiseUpdate& update) const override;
  void cast_shards(std::span<const CastShard> rows) const override;
  void upcast_sums(std::span<const UpcastSum> rows) const override;
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
  Fp8Matrix fp8_cast(const at::Tensor& x_RC, const at::Tensor& largest, Fp8Format format, Fp8Sides sides,
                     Fp8Matrix made) const override;
  at::Tensor fp8_columns(const at::Tensor& rows_RC) const override;
  void rope(at::Tensor& x_NC, std::int64_t heads, std::int64_t head_size, const RopeTable& table,
            const TokenPositions& place, bool inverse) const override;
  void cross_entropy(StepSums& sums, at::Tensor& logits_NV, const Targets& targets, std::int64_t vocab,
                     const GradScale& grad_scale) const override;

 protected:
  /// Blocked attention (query_blocks.hpp): keys outside a window are skipped, only one block's scores are held, and the
  /// backward recomputes the probabilities. AtenOps serves dropout.
  at::Tensor row_attention(const at::Tensor& qkv_NC, const AttentionShape& shape,
                           std::unique_ptr<AttentionState>* state) const override;
  at::Tensor row_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const at::Tensor& out_ND,
                                    const AttentionShape& shape, std::unique_ptr<AttentionState> state) const override;
  bool attends_in_blocks(const at::Tensor& qkv_NC, const AttentionShape& shape) const;
  /// Dtype of blocked attention: float32 if the device cannot multiply `dtype` into float32.
  virtual at::ScalarType block_type(at::ScalarType dtype) const { return dtype; }
  /// out (+)= a @ b, 3-D. `out` has the dtype of the factors, or is float32 and is then not rounded in between.
  virtual void batched_product(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool add) const;
  bool has_kernels() const { return kernels_ != nullptr; }
  void dequantize_into(at::Tensor& out_OI, const Nf4Matrix& matrix) const override;
  at::Tensor dropout_mask(const at::Tensor& keys_N, std::int64_t columns, double probability,
                          at::ScalarType dtype) const override;
  /// Packs gradients of q, k and v, [B, heads, L, head_size] with any strides, into rows of [q | k | v].
  /// \param rotation  if not null, the gradients of q and k are rotated back
  at::Tensor pack_heads(std::array<at::Tensor, 3> parts, const AttentionShape& shape, const Rotation* rotation) const;

 private:
  /// True if the kernels support these tensors: one dtype, contiguous, on the device. Undefined tensors are ignored.
  bool takes(std::initializer_list<const at::Tensor*> tensors) const;
  bool takes_fp8(const at::Tensor& x_RC) const;
  /// True if the kernel supports both, which need the same row stride.
  bool takes_gated(const at::Tensor& gate_NF, const at::Tensor& up_NF) const;
  void gated_pass(GateActivation gate, const at::Tensor& out_NF, const at::Tensor& gate_NF, const at::Tensor& up_NF,
                  bool backward) const;
  NormResult norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D, const at::Tensor& gamma_D,
                  const at::Tensor& beta_D, const RmsNorm& kind) const;
  at::Tensor norm_backward(const NormBackward& norm, const NormGrads& grads, const NormAgain* again) const;
  bool takes_norm(const NormBackward& norm) const;
  /// A pass whose column sums are accumulated into the slot, which may be null.
  void column_pass_into(GradSlot* slot, fused::ColumnPassKind kind, const at::Tensor& x_ND, const at::Tensor& y_ND,
                        at::Tensor* out_ND) const;
  /// Blocked attention of one or more sequences whose rows are contiguous.
  void attend_in_blocks(const at::Tensor& qkv_NC, const AttentionShape& shape, const at::Tensor& out_ND,
                        const at::Tensor& log_sums) const;
  void attend_in_blocks_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const at::Tensor& out_ND,
                                 const AttentionShape& shape, const at::Tensor& log_sums,
                                 const at::Tensor& grad_qkv_NC) const;

  fused::Moment moment_of(const BlockwiseMoment& moment, MomentFormat format, bool is_signed) const;

  std::shared_ptr<const fused::Kernels> kernels_;
  /// Values and thresholds of codes on the device, made at their first use. By format, and whether they are signed.
  mutable std::map<std::pair<MomentFormat, bool>, std::pair<at::Tensor, at::Tensor>> moment_tables_;
};

}  // namespace fsdp
