#pragma once
// RMSNorm of queries and keys between their projection and their rotation, in place in the packed rows [q | k | v].
#include "lib/compute/ops/ops.hpp"
#include "lib/models/config/model_config.hpp"

namespace fsdp {

/// What the backward needs: rows as they were projected.
struct HeadNormState {
  NormResult q, k;
};

class HeadNorms {
 public:
  HeadNorms(const Ops& ops, const ModelConfig& config) : ops_(ops), config_(config) {}

  bool are_there() const { return config_.traits.head_norm != HeadNorm::none; }
  /// \param keep  receives what the backward needs; null when there will be none
  void forward(at::Tensor& qkv_NC, const at::Tensor& gamma_q, const at::Tensor& gamma_k, HeadNormState* keep) const;
  /// Gradients of normed queries and keys become those of projected ones.
  void backward(at::Tensor& grad_qkv_NC, const at::Tensor& gamma_q, const at::Tensor& gamma_k, GradSlot* grad_gamma_q,
                GradSlot* grad_gamma_k, const HeadNormState& state) const;

 private:
  struct Columns {
    std::int64_t first, heads;
  };
  Columns queries() const { return {0, config_.num_heads}; }
  Columns keys() const { return {config_.num_heads, config_.kv_heads()}; }
  at::Tensor columns_of(const at::Tensor& qkv_NC, const Columns& columns) const;
  /// One row for each norm: of a head, or of all of them.
  at::Tensor rows_of(const at::Tensor& part_NC) const;

  const Ops& ops_;
  ModelConfig config_;
};

}  // namespace fsdp
