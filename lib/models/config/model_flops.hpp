#pragma once
// What a token costs in matrix products: the useful operations that MFU is a part of. Free of LibTorch.
#include <cstdint>
#include <vector>

#include "lib/models/config/model_config.hpp"

namespace fsdp {

/// Multiply-adds of matrix products that one token needs, times two.
struct ModelFlops {
  double forward = 0;
  double backward = 0;
  double recomputable = 0;  ///< forward of those blocks that the backward reaches

  double total() const { return forward + backward; }
};

/// 6 per parameter of a matrix product (embeddings that are only looked up excluded) plus causal attention. Source:
/// PaLM, appendix B. Of these 6, 2 are the forward, 2 the gradient of the input and 2 the weight's. A frozen matrix has
/// none of its own, so 4; and the backward ends at the lowest block that has something to train, so that those below
/// have 2. That block counts as a whole.
/// \param table  of the model, in 4 bits or not, and of its adapters behind it \param trainable  by index in it
ModelFlops flops_per_token(const ModelConfig& config, std::int64_t sequence_length,
                           const std::vector<ParameterSpec>& table, const std::vector<bool>& trainable);
/// For a model whose parameters are all trained.
ModelFlops flops_per_token(const ModelConfig& config, std::int64_t sequence_length);

}  // namespace fsdp
