#pragma once
// Operations of a GPU: by fused kernels, each of which makes one pass over memory where plain operators make many.
// ATen's operators serve tensors that a kernel does not support (dtype, strides, host memory), and all tensors if there
// are no kernels: the reference in tests.
#include <array>
#include <memory>
#include <utility>

#include "lib/compute/ops/ops.hpp"

namespace fsdp {

/// False if the environment variable FSDP_CUDA_KERNELS is "off", which selects plain operators for comparison.
bool wants_fused_kernels();

class DeviceOps : public Ops {
 public:
  /// \param fused  kernels of `device`; null: plain operators serve
  explicit DeviceOps(at::Device device, std::shared_ptr<const fused::Kernels> fused = nullptr,
                     detail::WorkCounter work = {})
      : Ops(nullptr, std::move(fused), std::move(work)), device_(device) {}
  at::Device device() const override { return device_; }
  bool on_host() const override { return false; }

 protected:
  bool has_kernels() const { return fused_ != nullptr; }
  void product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) const override;
  void add_converted(at::Tensor& to, const at::Tensor& from) const override { to.add_(from); }
  /// Blocked attention (query_blocks.hpp): keys outside a window are skipped, only one block's scores are held, and the
  /// backward recomputes the probabilities. Without kernels and with dropout: the formula.
  at::Tensor row_attention(const at::Tensor& qkv_NC, const AttentionShape& shape,
                           std::unique_ptr<AttentionState>* state) const override;
  at::Tensor row_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const at::Tensor& out_ND,
                                    const AttentionShape& shape, std::unique_ptr<AttentionState> state) const override;
  bool attends_in_blocks(const at::Tensor& qkv_NC, const AttentionShape& shape) const;
  /// Dtype of blocked attention: float32 if the device cannot multiply `dtype` into float32.
  virtual at::ScalarType block_type(at::ScalarType dtype) const { return dtype; }
  /// out (+)= a @ b, 3-D. `out` has the dtype of the factors, or is float32 and is then not rounded in between.
  virtual void batched_product(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool add) const;
  /// Packs gradients of q, k and v, [B, heads, L, head_size] with any strides, into rows of [q | k | v].
  /// \param rotation  if not null, the gradients of q and k are rotated back
  at::Tensor pack_heads(std::array<at::Tensor, 3> parts, const AttentionShape& shape, const Rotation* rotation) const;

 private:
  /// Holds the scores of all queries and keys at once.
  at::Tensor formula_attention(const at::Tensor& qkv_NC, const AttentionShape& shape,
                               std::unique_ptr<AttentionState>* state) const;
  at::Tensor formula_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC,
                                        const AttentionShape& shape, std::unique_ptr<AttentionState> state) const;
  /// Blocked attention of one or more sequences whose rows are contiguous.
  void attend_in_blocks(const at::Tensor& qkv_NC, const AttentionShape& shape, const at::Tensor& out_ND,
                        const at::Tensor& log_sums) const;
  void attend_in_blocks_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const at::Tensor& out_ND,
                                 const AttentionShape& shape, const at::Tensor& log_sums,
                                 const at::Tensor& grad_qkv_NC) const;

  at::Device device_;
};

}  // namespace fsdp
