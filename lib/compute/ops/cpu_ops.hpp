#pragma once
// Operations on the CPU: kernels of lib/compute/kernels, and products by MKL or oneDNN.
#include <utility>

#include "lib/compute/kernels/kernels.hpp"
#include "lib/compute/ops/ops.hpp"

namespace fsdp {

/// Rows of at most this many tokens use batched matrix products for attention (3 % faster in float32, 7-13 % in bf16
/// than flash attention at 255 tokens); longer ones use ATen's flash kernel, which never holds L x L scores.
inline constexpr std::int64_t kShortRow = 512;

class CpuOps : public Ops {
 public:
  explicit CpuOps(detail::WorkCounter work = {}) : Ops(&kernels::table(), nullptr, std::move(work)) {}
  at::Device device() const override { return at::kCPU; }
  bool on_host() const override { return true; }
  std::string gemm_description(at::ScalarType dtype) const override;

 protected:
  at::Tensor row_attention(const at::Tensor& qkv_NC, const AttentionShape& shape,
                           std::unique_ptr<AttentionState>* state) const override;
  at::Tensor row_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const at::Tensor& out_ND,
                                    const AttentionShape& shape, std::unique_ptr<AttentionState> state) const override;
  void product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) const override;
  at::Tensor blended_product(const at::Tensor& x, double beta, const at::Tensor& a, const at::Tensor& b,
                             double alpha) const override;
  void add_converted(at::Tensor& to, const at::Tensor& from) const override;
  /// ATen's flash attention. \param logsumexp  float32 [B, H, L], written for the backward
  virtual at::Tensor flash(const at::Tensor& qkv_NC, const AttentionShape& shape, at::Tensor& logsumexp) const;
  virtual at::Tensor flash_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const at::Tensor& out_ND,
                                    const AttentionShape& shape, const at::Tensor& logsumexp) const;

 private:
  /// Attention with a window or a score cap, one block of queries at a time; keeps nothing for the backward.
  at::Tensor band(const at::Tensor& qkv_NC, const AttentionShape& shape) const;
  at::Tensor band_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const AttentionShape& shape) const;
  at::Tensor short_rows(const at::Tensor& qkv_NC, const AttentionShape& shape, at::Tensor& probs_BHLL) const;
  at::Tensor short_rows_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const AttentionShape& shape,
                                 const at::Tensor& probs_BHLL) const;
};

}  // namespace fsdp
