#pragma once
// First values of the master weights of a model from scratch, made shard by shard: no rank ever holds the full model.
#include <cstdint>

#include "lib/engine/runtime/model_runtime.hpp"

namespace fsdp {

/// Element i of parameter P is a function of (seed, name of P, i): the same values whatever the ranks and strategy.
/// Normal numbers by Box and Muller from counter-based splitmix64 bits, computed in float64.
void initialize_parameters(ModelRuntime& runtime, std::uint64_t seed);
/// Initializes the parameters of adapters, whose base matrices must be filled already, and a new head of scores
/// (ModelConfig::score_is_new).
void initialize_added_parameters(ModelRuntime& runtime, std::uint64_t seed);

}  // namespace fsdp
