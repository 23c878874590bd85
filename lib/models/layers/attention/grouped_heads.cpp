// Heads of projections whose columns hold, for each head of keys, its queries, the key and the value: Falcon's
// query_key_value. With rotary positions or ALiBi.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <bit>
#include <cmath>
#include <utility>

#include "lib/compute/ops/ops.hpp"
#include "lib/compute/tensor/memory_scope.hpp"
#include "lib/models/config/rope.hpp"
#include "lib/models/layers/attention/attention.hpp"
#include "lib/models/layers/attention/cached_attention.hpp"

namespace fsdp::detail {
namespace {

/// ALiBi (Press et al.,
/// arXiv:2108.12409) adds slope x position of the key to the scores before they are scaled. The bias becomes an element
/// of its own of each key, which meets a 1 in the queries, so that every kernel for attention computes with it. Slopes
/// and products are rounded to bf16 as in transformers; any activations' dtype holds them exactly.
class GroupedHeads final : public Heads {
 public:
  /// \param slopes_H  bf16; undefined without ALiBi. \param rope  null with ALiBi
  GroupedHeads(const BlockSite& site, at::Tensor slopes_H, std::shared_ptr<RopeCache> rope)
      : ops_(site.ops), config_(site.decoder.config), slopes_H_(std::move(slopes_H)), rope_(std::move(rope)) {}

  at::Tensor forward(LayerParams, const MicroBatch& batch, at::Tensor projected_NC, at::Tensor&, HeadsState& s,
                     bool keep) const override {
    auto qkv_NC = placed(projected_NC, batch);
    auto out_ND = ops_.attention(qkv_NC, shape_of(batch), keep ? &s.attention : nullptr);
    if (keep) {
      s.qkv_NC = std::move(qkv_NC);
      s.out_NQ = out_ND;
    }
    return without_bias(out_ND);
  }

  at::Tensor output(const HeadsState& state) const override { return without_bias(state.out_NQ); }

  at::Tensor backward(LayerParams, LayerGrads, const MicroBatch& batch, at::Tensor grad_ND,
                      HeadsState& s) const override {
    const auto shape = shape_of(batch);
    at::Tensor grad_NC;
    if (slopes_H_.defined()) {
      auto wide_ND = at::zeros_like(s.out_NQ);
      heads_in(wide_ND, config_.num_heads).narrow(2, 0, width()).copy_(heads_in(grad_ND, config_.num_heads));
      grad_NC = ops_.attention_backward(wide_ND, s.qkv_NC, s.out_NQ, shape, std::move(s.attention));
    } else {
      grad_NC = ops_.rotary_attention_backward(grad_ND, s.qkv_NC, s.out_NQ, shape, std::move(s.attention),
                                               rope_->rotation(batch));
    }
    s = {};
    return by_groups(slopes_H_.defined() ? narrowed(grad_NC) : grad_NC);
  }

  at::Tensor decode(LayerParams, const at::Tensor& projected_NC, std::span<const DecodePart> parts) const override {
    const auto of_part = [](const DecodePart& part) {
      return MicroBatch{{}, {}, 1, part.tokens, {}, part.cache_length};
    };
    const auto placed_part = [&](const at::Tensor& rows_NC, const DecodePart& part) {
      return placed(rows_NC, of_part(part));
    };
    return attend_by_parts(projected_NC, parts, placed_part, [&](const at::Tensor& rows_NC, const DecodePart& part) {
      return without_bias(cached_attention(rows_NC, shape_of(of_part(part)), part, longest_row(config_)));
    });
  }

 private:
  std::int64_t width() const { return config_.head_width(); }
  std::int64_t group() const { return config_.num_heads / config_.kv_heads(); }
  /// With the bias and zeros, up to a multiple of 8, which kernels on GPUs want.
  std::int64_t wide() const { return (width() + 8) / 8 * 8; }

  static at::Tensor heads_in(const at::Tensor& x_ND, std::int64_t heads) { return x_ND.unflatten(1, {heads, -1}); }

  AttentionShape shape_of(const MicroBatch& batch) const {
    AttentionShape shape{batch.rows, batch.length, config_.num_heads, width(), config_.kv_heads()};
    shape.packing = batch.packing.get();
    if (!slopes_H_.defined()) return shape;
    shape.head_size = wide();
    shape.kv_heads = config_.num_heads;  // each head has its own bias
    shape.scale = 1.0 / std::sqrt(static_cast<double>(width()));
    return shape;
  }

  /// \return rows of [q | k | v] with positions
  at::Tensor placed(const at::Tensor& projected_NC, const MicroBatch& batch) const {
    auto qkv_NC = by_kind(projected_NC);
    if (slopes_H_.defined()) return widened(qkv_NC, batch);
    if (qkv_NC.size(0) == 0) return qkv_NC;
    const auto turned = rope_->rotation(batch);
    ops_.rope(qkv_NC, config_.num_heads + config_.kv_heads(), width(), turned.table, turned.place, false);
    return qkv_NC;
  }

  /// Calls body(part of rows of [q | k | v], the same part of rows of query_key_value).
  template <typename Body>
  void for_parts(const at::Tensor& kinds_NC, const at::Tensor& groups_NC, const Body& body) const {
    const auto keys = config_.kv_heads(), d = width(), queries = config_.num_heads * d;
    const auto groups = groups_NC.unflatten(1, {keys, group() + 2, d});
    body(kinds_NC.narrow(1, 0, queries).unflatten(1, {keys, group(), d}), groups.narrow(2, 0, group()));
    for (const std::int64_t part : {0, 1})
      body(kinds_NC.narrow(1, queries + part * keys * d, keys * d).unflatten(1, {keys, d}),
           groups.select(2, group() + part));
  }

  at::Tensor by_kind(const at::Tensor& groups_NC) const {
    if (config_.kv_heads() == 1) return groups_NC;  // one group is in this order
    auto kinds_NC = at::empty_like(groups_NC);
    for_parts(kinds_NC, groups_NC, [](const at::Tensor& to, const at::Tensor& from) { to.copy_(from); });
    return kinds_NC;
  }

  at::Tensor by_groups(const at::Tensor& kinds_NC) const {
    if (config_.kv_heads() == 1) return kinds_NC;
    auto groups_NC = at::empty_like(kinds_NC);
    for_parts(kinds_NC, groups_NC, [](const at::Tensor& from, const at::Tensor& to) { to.copy_(from); });
    return groups_NC;
  }

  /// q, k or v of rows of [q | k | v], [N, its heads, width]
  at::Tensor part_of_kinds(const at::Tensor& kinds_NC, int part) const {
    const auto queries = config_.num_heads, keys = config_.kv_heads(), d = width();
    const auto first = part == 0 ? 0 : queries + (part - 1) * keys;
    return heads_in(kinds_NC.narrow(1, first * d, (part == 0 ? queries : keys) * d), part == 0 ? queries : keys);
  }

  /// \return rows [q | k | v] of wide heads, as many of keys as of queries
  at::Tensor widened(const at::Tensor& kinds_NC, const MicroBatch& batch) const {
    const auto n = kinds_NC.size(0), heads = config_.num_heads;
    auto wide_N3HW = at::zeros({n, 3, heads, wide()}, kinds_NC.options());
    for (int part = 0; part < 3; ++part) {
      const auto from = part_of_kinds(kinds_NC, part);
      wide_N3HW.select(1, part)
          .narrow(2, 0, width())
          .copy_(part == 0 || group() == 1 ? from : from.repeat_interleave(group(), 1));
    }
    wide_N3HW.select(1, 0).select(2, width()).fill_(1);
    wide_N3HW.select(1, 1).select(2, width()).copy_(positions_of(batch).to(at::kBFloat16).unsqueeze(1) * slopes_H_);
    return wide_N3HW.view({n, 3 * heads * wide()});
  }

  at::Tensor positions_of(const MicroBatch& batch) const {
    if (batch.packing != nullptr) return batch.packing->positions_N;
    const auto first = batch.first_position;
    return at::arange(first, first + batch.length, slopes_H_.options().dtype(at::kInt)).repeat({batch.rows});
  }

  /// \return the gradient of kinds_NC from that of widened()
  at::Tensor narrowed(const at::Tensor& wide_NC) const {
    const auto n = wide_NC.size(0), heads = config_.num_heads, keys = config_.kv_heads();
    const auto wide_N3HW = wide_NC.view({n, 3, heads, wide()});
    auto kinds_NC = at::empty({n, (heads + 2 * keys) * width()}, wide_NC.options());
    for (int part = 0; part < 3; ++part) {
      const auto from = wide_N3HW.select(1, part).narrow(2, 0, width());
      part_of_kinds(kinds_NC, part).copy_(part == 0 || group() == 1 ? from : from.unflatten(1, {keys, group()}).sum(2));
    }
    return kinds_NC;
  }

  at::Tensor without_bias(const at::Tensor& out_ND) const {
    if (!slopes_H_.defined()) return out_ND;
    return heads_in(out_ND, config_.num_heads).narrow(2, 0, width()).flatten(1);
  }

  const Ops& ops_;
  ModelConfig config_;
  at::Tensor slopes_H_;
  std::shared_ptr<RopeCache> rope_;
};

}  // namespace

std::unique_ptr<Heads> make_grouped_heads(const BlockSite& site, std::shared_ptr<RopeCache> rope) {
  return std::make_unique<GroupedHeads>(site, at::Tensor(), std::move(rope));
}

std::unique_ptr<Heads> make_alibi_heads(const BlockSite& site, const at::Tensor& slopes_H) {
  return std::make_unique<GroupedHeads>(site, slopes_H, nullptr);
}

at::Tensor alibi_slopes(const Ops& ops, std::int64_t heads) {
  const MemoryScope scope(MemoryCategory::workspace);
  const auto n = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  const auto options = at::TensorOptions(at::kDouble).device(ops.device());
  const auto powers = at::cat({at::arange(1, n + 1, options) * 2, at::arange(0, heads - n, options) * 2 + 1});
  return (powers * (-4.0 / static_cast<double>(n))).exp2().to(at::kBFloat16);
}

}  // namespace fsdp::detail
