#pragma once
// RMSNorm of queries and keys between projection and rotation.
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lib/compute/ops/op_types.hpp"
#include "lib/models/layers/parameter_finder.hpp"

namespace fsdp::detail {

/// Saved for the backward: the projected rows before the norm.
struct HeadNormState {
  NormResult q, k;
};

/// The norms of a block, in place in rows of [q | k | v]; a model may have none.
class QkNorms {
 public:
  /// None. \param ops  must outlive this object
  QkNorms(const Ops& ops, const ModelConfig& config) : ops_(ops), config_(config) {}
  /// \param q, k  names of the weights among the block's parameters
  QkNorms(const Ops& ops, const ModelConfig& config, const ParameterFinder& finder, const char* q, const char* k)
      : ops_(ops), config_(config), q_(finder.find(q)), k_(finder.find(k)) {}

  bool are_there() const { return q_ >= 0; }
  /// \pre are_there() \param keep  receives the state for the backward pass; null if there is none
  void forward(LayerParams p, at::Tensor& qkv_NC, HeadNormState* keep) const;
  /// Converts gradients of the normed queries and keys to gradients of the projected ones, in place.
  void backward(LayerParams p, LayerGrads g, at::Tensor& grad_qkv_NC, const HeadNormState& state) const;

 private:
  struct Columns {
    std::int64_t first, heads;
  };
  Columns queries() const { return {0, config_.num_heads}; }
  Columns keys() const { return {config_.num_heads, config_.kv_heads()}; }
  at::Tensor columns_of(const at::Tensor& qkv_NC, const Columns& columns) const;
  /// Returns one row per norm: a head, or all heads of a token.
  at::Tensor rows_of(const at::Tensor& part_NC) const;

  const Ops& ops_;
  ModelConfig config_;
  int q_ = -1, k_ = -1;
};

}  // namespace fsdp::detail
