#pragma once
// Attention for generation: one sequence, new tokens against everything before them.
#include "lib/compute/ops/op_types.hpp"
#include "lib/models/layers/decoder.hpp"

namespace fsdp {

/// Keys and values of the new tokens join the cache.
/// \param qkv_NC        of the new tokens, at positions [cache_length, cache_length + N); shape.rows is 1
/// \param max_capacity  tokens that the cache will ever hold
/// \return out_ND
at::Tensor cached_attention(const at::Tensor& qkv_NC, const AttentionShape& shape, LayerCache& cache,
                            std::int64_t cache_length, std::int64_t max_capacity);

}  // namespace fsdp
