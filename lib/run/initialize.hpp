#pragma once
// First values of the masters: made or read shard by shard, so that no rank ever holds the full model.
#include <cstdint>
#include <filesystem>

#include "lib/run/model_runtime.hpp"

namespace fsdp {

/// Element i of parameter P is a function of (seed, name of P, i): the same values whatever the ranks and strategy.
/// Normal numbers by Box and Muller from counter-based splitmix64 bits, computed in float64.
void initialize_parameters(ModelRuntime& runtime, std::uint64_t seed);

/// Reads DIR/model.safetensors (or its index), each rank only its rows (of a GPT-2, whose matrices are transposed, a
/// buffer at a time); float32, bf16 and fp16 are converted.
/// \throws FormatError naming a parameter that is missing or has another shape
void load_safetensors_parameters(ModelRuntime& runtime, const std::filesystem::path& directory);

}  // namespace fsdp
