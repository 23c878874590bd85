#pragma once
// FLOPs of a token's matrix products: the useful operations in the definition of MFU. Free of LibTorch.
#include <cstdint>
#include <vector>

#include "lib/models/config/model_config.hpp"

namespace fsdp {

/// FLOPs (twice the multiply-adds) of the matrix products for one token.
struct ModelFlops {
  double forward = 0;
  double backward = 0;
  double recomputable = 0;  ///< forward FLOPs of the blocks that the backward pass reaches

  double total() const { return forward + backward; }
};

/// Counts 6 FLOPs per parameter of a matrix product (without embedding lookups) plus causal attention. Source: PaLM,
/// appendix B. Of the 6, the forward pass, the gradient of the input and the gradient of the weight take 2 each. A
/// frozen matrix has no weight gradient, so it takes 4. The backward pass ends at the lowest block with a trainable
/// parameter, which counts as a whole; the blocks below it take 2.
/// \param table  parameters of the model, quantised or not, followed by those of its adapters
/// \param trainable  indexed like table
ModelFlops flops_per_token(const ModelConfig& config, std::int64_t sequence_length,
                           const std::vector<ParameterSpec>& table, const std::vector<bool>& trainable);
/// For a model whose parameters are all trainable.
ModelFlops flops_per_token(const ModelConfig& config, std::int64_t sequence_length);

}  // namespace fsdp
