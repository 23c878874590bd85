#pragma once
// A forward pass over new tokens of several sequences, whose keys and values are in caches; and a step of generation.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lib/engine/runtime/model_runtime.hpp"

namespace fsdp {

/// New ids of a sequence.
struct DecodeSegment {
  std::span<const std::int32_t> ids;  ///< at positions [cached, cached + size)
  std::int64_t cached = 0;            ///< ids before them, whose keys and values are in the caches
  std::span<LayerCache> caches;  ///< by block; one: for each block in turn, with cached = 0 or after such a segment
  bool keeps = true;             ///< as DecodePart::keeps
  std::span<LayerCache> beginning = {};  ///< as DecodePart::beginning, by block or for each in turn; empty: none
};

/// Takes the parameters of the head and the activations of all segments [N, width], one after the other, in one device
/// pass; rows after them are padding. Undefined where there are none.
using DecodedBody = std::function<void(LayerParams head, const at::Tensor& x_ND)>;

/// Runs the model over the segments. Collective: ranks may have different ones, and none; `body` is called on each.
/// \param least_rows  of products, see RowwiseOps
void decode_segments(ModelRuntime& runtime, std::span<const DecodeSegment> segments, std::int64_t least_rows,
                     const DecodedBody& body);

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
