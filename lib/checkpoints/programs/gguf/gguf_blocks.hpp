#pragma once
// Elements of ggml's quantised types as numbers.
#include <cstddef>
#include <span>
#include <string>

#include "lib/checkpoints/programs/gguf/gguf.hpp"

namespace fsdp {

/// True for the types that dequantize_gguf() reads: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and Q2_K to Q6_K.
bool can_dequantize_gguf(const GgufType& type);
/// Their names, for messages.
std::string dequantized_gguf_types();

/// Computes the elements of whole blocks in float32, as gguf-py does (quants.py): the scale of a group times its code,
/// less its minimum. \param blocks  type.block_bytes for each type.block_elements of `out`
void dequantize_gguf(const GgufType& type, std::span<const std::byte> blocks, std::span<float> out);

}  // namespace fsdp
