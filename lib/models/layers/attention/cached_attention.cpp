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

/// Gives a cache the keys and values of a beginning of `cache_length` tokens, with room for `more`.
void take_beginning(LayerCache& cache, const LayerCache& beginning, std::int64_t cache_length, std::int64_t more,
                    std::int64_t max_capacity) {
  const auto stored = cache_length - beginning.first_position;
  const auto take = [&](at::Tensor& to, const at::Tensor& from) {
    grow(to, from, 0, stored + more, max_capacity);
    to.narrow(1, 0, stored).copy_(from.narrow(1, 0, stored));
  };
  take(cache.keys_HTC, beginning.keys_HTC);
  take(cache.values_HTC, beginning.values_HTC);
  cache.first_position = beginning.first_position;
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
  const auto wave_of = [](const DecodePart& part) { return !part.keeps ? 2 : part.beginning != nullptr ? 1 : 0; };
  for (const int now : {0, 1, 2}) {
    std::vector<std::size_t> wave;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (wave_of(parts[i]) == now) wave.push_back(i);
    }
    const auto attend_to = [&](std::int64_t begin, std::int64_t end) {
      const WithoutAutograd guard;
      for (auto i = begin; i < end; ++i) {
        const auto at = element(wave, i);
        outs[at] = attend(outs[at], parts[at]);
      }
    };
    if (rows_NC.is_cpu()) {
      parallel_for(std::ssize(wave), 1, attend_to);
    } else {
      attend_to(0, std::ssize(wave));
    }
  }
  const auto padding = rows_NC.size(0) - first;
  if (padding > 0) outs.push_back(outs.front().new_zeros({padding, outs.front().size(1)}));
  return outs.size() == 1 ? outs.front() : at::cat(outs);
}

at::Tensor cached_attention(const at::Tensor& qkv_NC, const AttentionShape& rows, const DecodePart& part,
                            std::int64_t max_capacity) {
  const auto n = qkv_NC.size(0), cache_length = part.cache_length;
  auto& cache = *part.cache;
  if (part.keeps) {
    if (part.beginning != nullptr) take_beginning(cache, *part.beginning, cache_length, n, max_capacity);
    if (cache_length == 0) cache.first_position = 0;  // a new text, or the same one after the model's last position
    forget(cache, cache_length, rows.window);
  }
  const auto before = cache_length - cache.first_position, total = before + n;
  const auto heads = [&](std::int64_t first, std::int64_t count) {
    return qkv_NC.narrow(1, first * rows.head_size, count * rows.head_size)
        .unflatten(1, {count, rows.head_size})
        .transpose(0, 1);
  };
  auto keys = heads(rows.heads, rows.key_heads());
  auto values = heads(rows.heads + rows.key_heads(), rows.key_heads());
  if (part.keeps) {
    grow(cache.keys_HTC, keys, before, total, max_capacity);
    grow(cache.values_HTC, values, before, total, max_capacity);
    cache.keys_HTC.narrow(1, before, n).copy_(keys);
    cache.values_HTC.narrow(1, before, n).copy_(values);
    keys = cache.keys_HTC.narrow(1, 0, total);
    values = cache.values_HTC.narrow(1, 0, total);
  } else {
    keys = at::cat({cache.keys_HTC.narrow(1, 0, before), keys}, 1);
    values = at::cat({cache.values_HTC.narrow(1, 0, before), values}, 1);
  }
  // [kv_heads, group, N, head_size] against [kv_heads, 1, total, head_size]
  const auto queries = heads(0, rows.heads).unflatten(0, {rows.key_heads(), rows.group()});
  // The scores of many queries at once would be larger than all activations.
  constexpr std::int64_t kMostScores = std::int64_t{1} << 24, kLeastQueries = 16;
  const auto at_once = std::max(kMostScores / (total * rows.heads), kLeastQueries);
  std::vector<at::Tensor> outs;
  for (std::int64_t first = 0; first < n; first += at_once) {
    auto s = rows;
    s.query_length = std::min(at_once, n - first);
    s.first_query = before + first;
    s.key_length = s.first_query + s.query_length;
    const auto seen = [&](const at::Tensor& x_HTC) { return x_HTC.narrow(1, 0, s.key_length).unsqueeze(1); };
    auto scores = at::matmul(queries.narrow(2, first, s.query_length), seen(keys).transpose(2, 3)).to(at::kFloat);
    scores.mul_(static_cast<double>(detail::score_scale(s)));
    if (s.softcap > 0) scores.div_(s.softcap).tanh_().mul_(s.softcap);
    detail::mask_scores(scores, s);
    const auto probs = scores.softmax(-1).to(qkv_NC.scalar_type());
    const auto mixed = at::matmul(probs, seen(values));
    outs.push_back(mixed.flatten(0, 1).transpose(0, 1).reshape({s.query_length, s.heads * s.head_size}));
  }
  return outs.size() == 1 ? outs.front() : at::cat(outs);
}

}  // namespace fsdp
