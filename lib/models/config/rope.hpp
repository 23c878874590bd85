#pragma once
// Frequencies of the rotary position embedding, as transformers computes them (modeling_rope_utils.py).
#include <vector>

#include "lib/models/config/model_config.hpp"

namespace fsdp {

/// Returns the radians per position of each rotated pair of a head's elements: rotary_pairs() numbers, in float32 as in
/// transformers. Scaling: none, linear, llama3, and dynamic (which has no effect up to max_position_embeddings).
/// \param slides  for sliding-window layers, which may have a base of their own and then have no scaling
/// \throws FormatError naming config.source and an unsupported kind of scaling, or a value that is missing or out of
/// range
std::vector<float> rope_frequencies(const ModelConfig& config, bool slides = false);

}  // namespace fsdp
