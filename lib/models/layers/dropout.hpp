#pragma once
// Dropout of activations (lib/compute/ops/op_types.hpp, DropoutSeeds), by the place that it has in the model: 1 after
// the embedding; of block i, from 4 (i + 1) on, those after its halves (1, 2) and of attention's probabilities (3).
#include <cstdint>

#include "lib/base/types/hash_functions.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/models/config/model_config.hpp"

namespace fsdp::detail {

inline constexpr std::uint64_t kEmbeddingDropout = 1, kMixerDropout = 1, kFeedForwardDropout = 2, kScoresDropout = 3;

inline std::uint64_t dropout_place(int block, std::uint64_t number) {
  return static_cast<std::uint64_t>(block + 1) * 4 + number;
}

/// True in training.
inline bool drops(const ModelConfig& config, const MicroBatch& batch) {
  return config.dropout > 0 && batch.sample_keys.defined();
}

/// Applies dropout to x_ND (or to its gradient).
inline void drop(const Ops& ops, at::Tensor& x_ND, const MicroBatch& batch, std::uint64_t place, double probability) {
  ops.dropout(x_ND, ops.dropout_keys({batch.sample_keys, place * kDropoutIndexSpread}, batch.length, kSplitmix64Step),
              probability);
}

}  // namespace fsdp::detail
