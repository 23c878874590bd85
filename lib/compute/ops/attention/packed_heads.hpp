#pragma once
// Views by heads of packed projections and of attention outputs, for implementations of attention.
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>

#include <cmath>
#include <optional>

#include "lib/compute/ops/op_types.hpp"

namespace fsdp::detail {

enum class Part { q, k, v };

/// \return q, k or v of rows of [q | k | v] as a strided view [B, its heads, L, head_size]
inline at::Tensor part_of(const at::Tensor& qkv_NC, const AttentionShape& s, Part which) {
  const auto width = s.packed_width();
  const auto first_head = which == Part::q ? 0 : s.heads + (which == Part::v ? s.key_heads() : 0);
  return qkv_NC.as_strided({s.rows, which == Part::q ? s.heads : s.key_heads(), s.query_length, s.head_size},
                           {s.query_length * width, s.head_size, width, 1},
                           qkv_NC.storage_offset() + first_head * s.head_size);
}

/// Repeats keys or values [B, kv_heads, L, head_size] for each query head.
inline at::Tensor for_every_head(const at::Tensor& x, const AttentionShape& s) {
  return s.group() == 1 ? x : x.repeat_interleave(s.group(), 1);
}

/// Sums gradients [B, heads, L, head_size] over each group: the backward of for_every_head().
inline at::Tensor sum_of_groups(const at::Tensor& x, const AttentionShape& s) {
  return s.group() == 1 ? x : x.unflatten(1, {s.key_heads(), s.group()}).sum(2);
}

/// \return rows as a view [B, H, L, head_size]
inline at::Tensor heads_of(const at::Tensor& x_ND, const AttentionShape& s) {
  return x_ND.view({s.rows, s.query_length, s.heads, s.head_size}).transpose(1, 2);
}

/// \return heads as rows: a view if the memory layout permits
inline at::Tensor merge_heads(const at::Tensor& x_BHLD, const AttentionShape& s) {
  return x_BHLD.transpose(1, 2).reshape({s.rows * s.query_length, s.heads * s.head_size});
}

/// \return a view [kv_heads, ...] of x [H, ...]: head number `member` of each group
inline at::Tensor members(const at::Tensor& x, const AttentionShape& s, std::int64_t member) {
  if (s.group() == 1) return x;
  return x.unflatten(0, {s.key_heads(), s.group()}).select(1, member);
}

inline float score_scale(const AttentionShape& s) {
  return s.scale > 0 ? static_cast<float>(s.scale) : 1.0f / std::sqrt(static_cast<float>(s.head_size));
}

/// The scale argument of ATen's kernels: none for their default.
inline std::optional<double> given_scale(const AttentionShape& s) {
  return s.scale > 0 ? std::optional<double>(s.scale) : std::nullopt;
}

/// Masks scores [..., query_length, keys], float32: keys after a query, and those before its window.
inline void mask_scores(const at::Tensor& scores, const AttentionShape& s) {
  const bool some_behind = s.query_length > 1 || s.first_query + 1 < s.keys(), slides = s.window > 0 && !s.is_plain();
  if (!some_behind && !slides) return;
  const auto all = at::ones({s.query_length, s.keys()}, scores.options().dtype(at::kBool));
  if (some_behind) scores.masked_fill_(all.triu(s.first_query + 1), -INFINITY);
  if (slides) scores.masked_fill_(all.tril(s.first_query - s.window), -INFINITY);
}

/// Step between dropout keys of consecutive rows of scores: the mask depends on sample, head and position alone.
inline constexpr std::uint64_t kScoreKeyStep = 0x632be59bd9b4e019ull;

}  // namespace fsdp::detail
