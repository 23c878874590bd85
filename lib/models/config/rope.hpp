#pragma once
// Frequencies of the rotary position embedding, as transformers computes them (modeling_rope_utils.py).
#include <vector>

#include "lib/models/config/model_config.hpp"

namespace fsdp {

/// Radians per position of each pair of a head's elements that turn: rotary_pairs() numbers, in float32 as there.
/// Scaling: none, linear, llama3, and dynamic (which changes nothing up to max_position_embeddings).
/// \param slides  of layers that slide: they may have a base of their own, and are not scaled then
/// \throws FormatError naming config.source and a kind of scaling that is not supported, or a value that is missing or
/// out of range
std::vector<float> rope_frequencies(const ModelConfig& config, bool slides = false);

}  // namespace fsdp
