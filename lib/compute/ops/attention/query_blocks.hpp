#pragma once
// Blocked attention: which keys the products of a block of queries read, and how many sequences one launch takes.
#include <algorithm>
#include <cstdint>

#include "lib/compute/ops/op_types.hpp"

namespace fsdp {

/// A block of consecutive queries of one sequence, and the keys that at least one of these queries attends to.
struct QueryBlock {
  std::int64_t first_query, queries, first_key, keys;
};

/// Queries of a block. A larger block computes more scores that the mask discards (half a block per query on average);
/// a smaller one needs more launches. 256 was chosen without a measurement that is on record.
inline constexpr std::int64_t kBlockQueries = 256;

inline std::int64_t num_query_blocks(const AttentionShape& s) {
  return (s.query_length + kBlockQueries - 1) / kBlockQueries;
}

inline QueryBlock query_block(const AttentionShape& s, std::int64_t index) {
  const auto first = index * kBlockQueries, end = std::min(s.query_length, first + kBlockQueries);
  const auto first_key = s.window > 0 ? std::max<std::int64_t>(0, first - s.window + 1) : 0;
  return {first, end - first, first_key, end - first_key};
}

/// Elements from one row of a block's scores to the next; a multiple of 8, so that vector accesses stay aligned.
inline std::int64_t score_stride(const QueryBlock& block) { return (block.keys + 7) / 8 * 8; }

/// Elements of the largest block of scores of one head, padding of its rows included.
inline std::int64_t most_scores(const AttentionShape& s) {
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < num_query_blocks(s); ++i) {
    const auto block = query_block(s, i);
    most = std::max(most, block.queries * score_stride(block));
  }
  return most;
}

/// Sequences that share one launch: as many as keep the score buffer at or below 2^26 float32 scores (256 MiB).
inline std::int64_t sequences_at_once(const AttentionShape& s) {
  constexpr std::int64_t kScores = std::int64_t{1} << 26;
  return std::clamp<std::int64_t>(kScores / std::max<std::int64_t>(1, s.heads * most_scores(s)), 1, s.rows);
}

/// Bytes that the passes between the products read and write, for the speed model.
///
/// Per score, forward: the softmax reads the float32 score twice and writes the probability (8 + element). Backward: it
/// reads the float32 score and the gradient, and writes the probability and the gradient (4 + 3 element). `copies` is
/// one read and one write of q, k and v. Forward: q, k and v are copied into rows, and the output is copied back (about
/// half as much). Backward: q, k, v and the output's gradient are copied in, the gradients of q, k and v are copied
/// back, and the float32 sums of k and v are cleared and read; 3 is an estimate for all of them.
inline double bytes_between_products(const AttentionShape& s, std::int64_t element_size, bool backward) {
  double scores = 0;
  for (std::int64_t i = 0; i < num_query_blocks(s); ++i) {
    const auto block = query_block(s, i);
    scores += static_cast<double>(s.rows * s.heads * block.queries) * static_cast<double>(block.keys);
  }
  const auto element = static_cast<double>(element_size);
  const double copies = 2 * element * static_cast<double>(s.rows * s.query_length * s.packed_width());
  return scores * (backward ? 4 + 3 * element : 8 + element) + (backward ? 3 : 1.5) * copies;
}

}  // namespace fsdp
