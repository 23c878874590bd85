#pragma once
// One step of generation: the logits after each of several sequences, whose keys and values stay in caches.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "lib/engine/runtime/model_runtime.hpp"

namespace fsdp {

/// Ids that a model goes on with, and the keys and values of those that it has seen.
struct DecodedSequence {
  std::vector<std::int32_t> ids;
  std::int64_t cached = 0;         ///< the first ids, which are in the caches
  std::vector<LayerCache> caches;  ///< by block

  /// Replaces the ids. What is cached of the ids with which both begin stays, except in a layer whose window has
  /// already dropped keys.
  void replace(std::vector<std::int32_t> new_ids);
};

struct DecodeOptions {
  bool no_cache = false;  ///< computes all of a sequence each time, as a check
  /// Products have at least RowwiseOps::kRowsAlike rows: with these operations a sequence then has the same logits, to
  /// the last bit, in any company and alone.
  bool alike = false;
};

/// Returns the logits [sequences, vocabulary] of the token after each sequence, float32 on the host. Ids that are not
/// cached are computed, all sequences' in one forward pass; of a sequence longer than the model's positions the last
/// longest_row() ids are seen, as minGPT does it.
/// Collective: ranks may have different sequences, and none. \pre no sequence is empty
at::Tensor decode_step(ModelRuntime& runtime, std::span<DecodedSequence* const> sequences,
                       const DecodeOptions& options = {});

}  // namespace fsdp
