#pragma once
// Attention in blocks of queries: which keys a block's products take, and how many sequences are taken at once.
#include <algorithm>
#include <cstdint>

#include "lib/compute/ops/op_types.hpp"

namespace fsdp {

/// Of a sequence: queries, and the keys that at least one of them sees.
struct QueryBlock {
  std::int64_t first_query, queries, first_key, keys;
};

/// Scores beyond a window or the diagonal that are multiplied for nothing: half a block's width on average.
inline constexpr std::int64_t kBlockQueries = 256;

inline std::int64_t num_query_blocks(const AttentionShape& s) { return (s.length + kBlockQueries - 1) / kBlockQueries; }

inline QueryBlock query_block(const AttentionShape& s, std::int64_t index) {
  const auto first = index * kBlockQueries, end = std::min(s.length, first + kBlockQueries);
  const auto first_key = s.window > 0 ? std::max<std::int64_t>(0, first - s.window + 1) : 0;
  return {first, end - first, first_key, end - first_key};
}

/// From row to row of a block's scores: accesses of eight stay aligned.
inline std::int64_t score_stride(const QueryBlock& block) { return (block.keys + 7) / 8 * 8; }

/// Elements of a head's largest block.
inline std::int64_t most_scores(const AttentionShape& s) {
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < num_query_blocks(s); ++i) {
    const auto block = query_block(s, i);
    most = std::max(most, block.queries * score_stride(block));
  }
  return most;
}

/// As many as fill a GPU, no more: 2^26 scores are 256 MiB.
inline std::int64_t sequences_at_once(const AttentionShape& s) {
  constexpr std::int64_t kScores = std::int64_t{1} << 26;
  return std::clamp<std::int64_t>(kScores / std::max<std::int64_t>(1, s.heads * most_scores(s)), 1, s.rows);
}

/// What the passes between products read and write.
inline double bytes_between_products(const AttentionShape& s, std::int64_t element_size, bool backward) {
  double scores = 0;
  for (std::int64_t i = 0; i < num_query_blocks(s); ++i) {
    const auto block = query_block(s, i);
    scores += static_cast<double>(s.rows * s.heads * block.queries) * static_cast<double>(block.keys);
  }
  const auto element = static_cast<double>(element_size);
  const double copies = 2 * element * static_cast<double>(s.rows * s.length * s.packed_width());
  return scores * (backward ? 4 + 3 * element : 8 + element) + (backward ? 3 : 1.5) * copies;
}

}  // namespace fsdp
