#pragma once
// Attention for generation: new tokens of one sequence attend to all earlier ones.
#include "lib/compute/ops/op_types.hpp"
#include "lib/models/layers/decoder.hpp"

namespace fsdp {

/// Computes attention of the new tokens and appends their keys and values to the cache.
/// \param qkv_NC        projections of the new tokens, at positions [cache_length, cache_length + N); shape.rows is 1
/// \param max_capacity  maximum number of tokens in the cache
/// \return out_ND
at::Tensor cached_attention(const at::Tensor& qkv_NC, const AttentionShape& shape, LayerCache& cache,
                            std::int64_t cache_length, std::int64_t max_capacity);

}  // namespace fsdp
