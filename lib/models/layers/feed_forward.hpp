#pragma once
// Feed-forwards of blocks.
#include <memory>
#include <vector>

#include "lib/compute/ops/op_types.hpp"
#include "lib/models/layers/transformer_block.hpp"

namespace fsdp::detail {

/// down(act(gate(x)) * up(x)). \param in  gate and up, or one matrix with the rows of both. The frame adds the bias of
/// `down`.
std::unique_ptr<FeedForward> make_gated_feed_forward(const BlockSite& site, const std::vector<Linear>& in,
                                                     const Linear& down, GateActivation activation);

/// down(gelu_tanh(up(x))). The frame adds the bias of `down` and computes its gradient. \pre both have biases
std::unique_ptr<FeedForward> make_tanh_gelu_feed_forward(const BlockSite& site, const Linear& up, const Linear& down);

/// down(gelu(up(x))), GELU with the error function; biases are optional.
std::unique_ptr<FeedForward> make_exact_gelu_feed_forward(const BlockSite& site, const Linear& up, const Linear& down);

}  // namespace fsdp::detail
