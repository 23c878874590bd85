#pragma once
// Frequencies of the rotary position embedding, as transformers computes them (modeling_rope_utils.py).
#include <cstdint>
#include <vector>

#include "lib/models/config/model_config.hpp"

namespace fsdp {

/// Returns the radians per position of each rotated pair of a head's elements: rotary_pairs() numbers, in float32 as in
/// transformers. Scaling: none, linear, llama3, dynamic, yarn, longrope.
/// \param slides  for sliding-window layers, which may have a base of their own and then have no scaling
/// \param length  tokens of the longest row of the batch: dynamic scaling depends on the number beyond
///                max_position_embeddings, longrope has two sets of frequencies
/// \throws FormatError naming config.source and an unsupported kind of scaling, or a value that is missing or out of
/// range
std::vector<float> rope_frequencies(const ModelConfig& config, bool slides = false, std::int64_t length = 0);

/// Returns the factor of cosines and sines (yarn and longrope), so that scores grow by its square. \throws FormatError
double rope_attention_factor(const ModelConfig& config, bool slides = false);

/// Returns the factor by which yarn and longrope made rows longer. \pre rope_scaling is of these kinds \throws
/// FormatError
double rope_stretch(const ModelConfig& config);

/// True if rows of both lengths have the same frequencies, so that keys of one can stay in a cache for the other.
bool same_rope(const ModelConfig& config, std::int64_t length, std::int64_t other);

/// Returns the tokens of the longest row: block_size, or more where the kind of scaling, or ALiBi, was made for longer
/// rows. \throws FormatError
std::int64_t longest_row(const ModelConfig& config);
/// Returns the tokens of the longest row of a job: block_size, or `asked` (0: nothing is asked for) where that is more
/// and at most longest_row().
std::int64_t row_positions(const ModelConfig& config, std::int64_t asked);

}  // namespace fsdp
