#pragma once
// First values of the master weights of a model from scratch, made shard by shard: no rank ever holds the full model.
#include <cstdint>

#include "lib/engine/runtime/model_runtime.hpp"

namespace fsdp {

/// Element i of parameter P is a function of (seed, name of P, i): the same values whatever the ranks and strategy.
/// Normal numbers by Box and Muller from counter-based splitmix64 bits, computed in float64.
void initialize_parameters(ModelRuntime& runtime, std::uint64_t seed);
/// Initializes the parameters of adapters alone; their base matrices must be filled already.
void initialize_adapters(ModelRuntime& runtime, std::uint64_t seed);

}  // namespace fsdp
