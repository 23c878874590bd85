#pragma once
// Log-likelihoods of texts after contexts. What contexts have in common is computed once.
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "lib/engine/runtime/model_runtime.hpp"

namespace fsdp {

/// Ids to score after a context. Both have ids, together at most longest_row() + 1.
struct ScoreRequest {
  std::vector<std::int32_t> context, continuation;
};

struct RequestScore {
  double log_likelihood = 0;  ///< nats: the sum over the continuation's ids
  bool is_greedy = false;     ///< each of them is the first of the most probable ids of the model's whole vocabulary
};

struct ScoreRequestsOptions {
  /// On one rank: a forward pass has at most as many tokens as this number of the longest requests.
  std::int64_t micro_batch_size = 8;
  bool alike = false;                              ///< with RowwiseOps: the same bits in any company
  std::function<void(double done)> progress = {};  ///< called on every rank with the share of tokens that is done
  /// Called before each forward pass, returns the same on every rank; may be empty.
  std::function<bool()> stopped = {};
};

/// Scores of the requests, which are the same on all ranks, on every rank; nothing when stopped. A context that several
/// requests have is computed once, and each continuation as a branch of it; so is the beginning of contexts that begin
/// alike (examples before questions) for all of them in a forward pass. Collective; results depend on neither the
/// number of ranks nor the size of a pass but for rounding, and with `alike` not even by that.
std::optional<std::vector<RequestScore>> score_requests(ModelRuntime& runtime, std::span<const ScoreRequest> requests,
                                                        const ScoreRequestsOptions& options);

}  // namespace fsdp
