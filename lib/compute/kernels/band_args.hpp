#pragma once
// Arguments of attention's passes over a block of queries and the keys that they may see. See kernels.hpp.
#include <cstdint>

namespace fsdp::kernels {

/// Query r % queries of a block sees the keys (last - window, last] of those at hand, last = first_query + r % queries.
/// A score becomes softcap tanh(scale score / softcap), or scale score where softcap is 0.
struct Band {
  std::int64_t queries;
  std::int64_t keys;         ///< columns that count
  std::int64_t leading;      ///< elements between rows
  std::int64_t first_query;  ///< position of the first query, counted from the first key
  std::int64_t window;       ///< 0: all
  float scale;
  float softcap;
};

struct BandSoftmaxArgs {
  Band band;
  const void* scores;  ///< [rows, leading], as multiplied
  void* probs;         ///< may be the scores; what is not seen becomes 0
};

struct BandSoftmaxBackwardArgs {
  Band band;
  void* grad;  ///< in: gradient of the probabilities, out: of the scores as multiplied
  const void* probs;
  const void* scores;  ///< null where nothing is capped
};

}  // namespace fsdp::kernels
