#pragma once
// Attention for generation: new tokens of a sequence attend to all earlier ones.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>

#include "lib/compute/ops/op_types.hpp"
#include "lib/models/layers/decoder.hpp"

namespace fsdp {

/// Work on the rows of a part.
using PartBody = std::function<at::Tensor(const at::Tensor& rows_NC, const DecodePart& part)>;

/// Returns attend(place(rows)) of each part, row by row; zeros for padding.
/// \param rows_NC  as x_ND of DecoderBlock::decode()
/// \param place    called for one part after the other
/// \param attend   called on several threads at once where there are several parts on a CPU: first for those that keep
///                 their keys, then for those that go on from them, then for branches
at::Tensor attend_by_parts(const at::Tensor& rows_NC, std::span<const DecodePart> parts, const PartBody& place,
                           const PartBody& attend);

/// Computes attention of the part's tokens, whose keys and values are appended to the cache if the part keeps them.
/// \param qkv_NC        projections of the new tokens, at positions [cache_length, cache_length + N); shape.rows is 1
/// \param max_capacity  maximum number of tokens in the cache
/// \return out_ND
at::Tensor cached_attention(const at::Tensor& qkv_NC, const AttentionShape& shape, const DecodePart& part,
                            std::int64_t max_capacity);

}  // namespace fsdp
