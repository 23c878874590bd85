// Heads of projections in the order [q | k | v]: Llama's kind, with rotary positions, and minGPT's, without.
#include <cmath>
#include <utility>

#include "lib/compute/ops/ops.hpp"
#include "lib/models/config/rope.hpp"
#include "lib/models/layers/attention/attention.hpp"
#include "lib/models/layers/attention/cached_attention.hpp"
#include "lib/models/layers/dropout.hpp"

namespace fsdp::detail {
namespace {

class PackedHeads final : public Heads {
 public:
  PackedHeads(const BlockSite& site, QkNorms norms, std::shared_ptr<RopeCache> rope)
      : ops_(site.ops),
        config_(site.decoder.config),
        index_(site.index),
        norms_(std::move(norms)),
        rope_(std::move(rope)),
        longest_row_(longest_row(config_)) {}

  at::Tensor forward(LayerParams p, const MicroBatch& batch, at::Tensor projected_NC, at::Tensor& in_ND, HeadsState& s,
                     bool keep) const override {
    if (norms_.are_there()) norms_.forward(p, projected_NC, keep ? &s.norms : nullptr);
    rotate(projected_NC, batch);
    in_ND.reset();
    s.out_NQ = ops_.attention(projected_NC, shape_of(batch), keep ? &s.attention : nullptr);
    if (keep) s.qkv_NC = projected_NC;
    projected_NC.reset();
    return s.out_NQ;
  }

  at::Tensor output(const HeadsState& state) const override { return state.out_NQ; }

  at::Tensor backward(LayerParams p, LayerGrads g, const MicroBatch& batch, at::Tensor grad_NQ,
                      HeadsState& s) const override {
    const auto shape = shape_of(batch);
    s.grad_NQ = std::move(grad_NQ);
    auto grad_NC = rope_ == nullptr
                       ? ops_.attention_backward(s.grad_NQ, s.qkv_NC, s.out_NQ, shape, std::move(s.attention))
                       : ops_.rotary_attention_backward(s.grad_NQ, s.qkv_NC, s.out_NQ, shape, std::move(s.attention),
                                                        rope_->rotation(batch));
    s.qkv_NC.reset();
    s.out_NQ.reset();
    if (norms_.are_there()) norms_.backward(p, g, grad_NC, s.norms);
    s.norms = {};
    return grad_NC;
  }

  at::Tensor decode(LayerParams p, const at::Tensor& projected_NC, std::span<const DecodePart> parts) const override {
    auto rows_NC = projected_NC;
    if (norms_.are_there()) norms_.forward(p, rows_NC, nullptr);
    const auto of_part = [](const DecodePart& part) {
      return MicroBatch{{}, {}, 1, part.tokens, {}, part.cache_length};
    };
    const auto rotated = [&](at::Tensor part_NC, const DecodePart& part) {
      rotate(part_NC, of_part(part));
      return part_NC;
    };
    return attend_by_parts(rows_NC, parts, rotated, [&](const at::Tensor& part_NC, const DecodePart& part) {
      auto shape = shape_of(of_part(part));
      shape.window = config_.traits.slides(index_) ? config_.traits.window : 0;
      return cached_attention(part_NC, shape, part, longest_row_);
    });
  }

 private:
  /// Rotates queries and keys by the positions of the batch's tokens, in place.
  void rotate(at::Tensor& qkv_NC, const MicroBatch& batch) const {
    if (rope_ == nullptr || qkv_NC.size(0) == 0) return;
    const auto shape = shape_of(batch);
    const auto turned = rope_->rotation(batch);
    // Keys follow the queries, so their heads are rotated in the same pass.
    ops_.rope(qkv_NC, shape.heads + shape.key_heads(), shape.head_size, turned.table, turned.place, false);
  }

  AttentionShape shape_of(const MicroBatch& batch) const {
    const auto& traits = config_.traits;
    AttentionShape shape{batch.rows, batch.length, config_.num_heads, config_.head_width(), config_.kv_heads()};
    if (traits.query_scalar > 0) shape.scale = 1.0 / std::sqrt(traits.query_scalar);
    shape.softcap = traits.attention_softcap;
    shape.packing = batch.packing.get();
    if (traits.slides(index_) && traits.window < batch.length) shape.window = traits.window;
    if (drops(config_, batch)) {
      shape.dropout = config_.dropout;
      shape.dropout_place = {batch.sample_keys, dropout_place(index_, kScoresDropout) * kDropoutIndexSpread};
    }
    return shape;
  }

  const Ops& ops_;
  ModelConfig config_;
  int index_;
  QkNorms norms_;
  std::shared_ptr<RopeCache> rope_;
  std::int64_t longest_row_;
};

}  // namespace

std::unique_ptr<Heads> make_packed_heads(const BlockSite& site, const QkNorms& norms, std::shared_ptr<RopeCache> rope) {
  return std::make_unique<PackedHeads>(site, norms, std::move(rope));
}

}  // namespace fsdp::detail
