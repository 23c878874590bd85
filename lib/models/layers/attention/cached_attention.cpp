#include "lib/models/layers/attention/cached_attention.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "lib/base/types/index.hpp"
#include "lib/compute/ops/attention/packed_heads.hpp"
#include "lib/compute/tensor/parallel.hpp"
#include "lib/compute/tensor/without_autograd.hpp"

namespace fsdp {
namespace {

constexpr std::int64_t kFirstCapacity = 256;

/// Makes room for `total` tokens by doubling the capacity, so that a long context uses memory only when needed.
void grow(at::Tensor& cache_HTC, const at::Tensor& like_HTC, std::int64_t cache_length, std::int64_t total,
          std::int64_t max_capacity) {
  if (cache_HTC.defined() && cache_HTC.size(1) >= total) return;
  auto capacity = cache_HTC.defined() ? 2 * cache_HTC.size(1) : kFirstCapacity;
  capacity = std::min(std::max(capacity, total), std::max(max_capacity, total));
  auto grown = at::empty({like_HTC.size(0), capacity, like_HTC.size(2)}, like_HTC.options());
  if (cache_HTC.defined()) grown.narrow(1, 0, cache_length).copy_(cache_HTC.narrow(1, 0, cache_length));
  cache_HTC = grown;
}

/// Drops keys outside of the window once they are at least as many as those that are kept: each key moves at most once.
void forget(LayerCache& cache, std::int64_t cache_length, std::int64_t window) {
  const auto stored = cache_length - cache.first_position, kept = std::min(stored, window - 1);
  if (window == 0 || stored < 2 * window || kept < 0) return;
  for (auto* x : {&cache.keys_HTC, &cache.values_HTC}) {
    x->narrow(1, 0, kept).copy_(x->narrow(1, stored - kept, kept).clone());
  }
  cache.first_position = cache_length - kept;
}

}  // namespace

at::Tensor attend_by_parts(const at::Tensor& rows_NC, std::span<const DecodePart> parts, const PartBody& place,
                           const PartBody& attend) {
  std::vector<at::Tensor> outs;
  std::int64_t first = 0;
  for (const auto& part : parts) {
    outs.push_back(place(rows_NC.narrow(0, first, part.tokens), part));
    first += part.tokens;
  }
  const auto attend_to = [&](std::int64_t begin, std::int64_t end) {
    const WithoutAutograd guard;
    for (auto i = to_index(begin); i < to_index(end); ++i) outs[i] = attend(outs[i], parts[i]);
  };
  const auto count = std::ssize(parts);
  if (rows_NC.is_cpu()) {
    parallel_for(count, 1, attend_to);
  } else {
    attend_to(0, count);
  }
  const auto padding = rows_NC.size(0) - first;
  if (padding > 0) outs.push_back(outs.front().new_zeros({padding, outs.front().size(1)}));
  return outs.size() == 1 ? outs.front() : at::cat(outs);
}

at::Tensor cached_attention(const at::Tensor& qkv_N3D, const AttentionShape& rows, LayerCache& cache,
                            std::int64_t cache_length, std::int64_t max_capacity) {
  const auto n = qkv_N3D.size(0);
  if (cache_length == 0) cache.first_position = 0;  // a new text, or the same one after the model's last position
  forget(cache, cache_length, rows.window);
  const auto before = cache_length - cache.first_position, total = before + n;
  auto s = rows;
  s.query_length = n;
  s.key_length = total;
  s.first_query = before;
  const auto heads = [&](std::int64_t first, std::int64_t count) {
    return qkv_N3D.narrow(1, first * s.head_size, count * s.head_size)
        .unflatten(1, {count, s.head_size})
        .transpose(0, 1);
  };
  const auto keys = heads(s.heads, s.key_heads());
  const auto values = heads(s.heads + s.key_heads(), s.key_heads());
  grow(cache.keys_HTC, keys, before, total, max_capacity);
  grow(cache.values_HTC, values, before, total, max_capacity);
  cache.keys_HTC.narrow(1, before, n).copy_(keys);
  cache.values_HTC.narrow(1, before, n).copy_(values);
  // [kv_heads, group, N, head_size] against [kv_heads, 1, total, head_size]
  const auto queries = heads(0, s.heads).unflatten(0, {s.key_heads(), s.group()});
  auto scores = at::matmul(queries, cache.keys_HTC.narrow(1, 0, total).unsqueeze(1).transpose(2, 3)).to(at::kFloat);
  scores.mul_(static_cast<double>(detail::score_scale(s)));
  if (s.softcap > 0) scores.div_(s.softcap).tanh_().mul_(s.softcap);
  detail::mask_scores(scores, s);
  const auto probs = scores.softmax(-1).to(qkv_N3D.scalar_type());
  const auto mixed = at::matmul(probs, cache.values_HTC.narrow(1, 0, total).unsqueeze(1));
  return mixed.flatten(0, 1).transpose(0, 1).reshape({n, s.heads * s.head_size});
}

}  // namespace fsdp
