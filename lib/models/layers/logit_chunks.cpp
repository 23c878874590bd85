#include "lib/models/layers/logit_chunks.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <utility>

#include "lib/compute/ops/ops.hpp"
#include "lib/compute/tensor/memory_scope.hpp"

namespace fsdp::detail {
namespace {

/// Rows of logits per chunk. With 510 rows and more, chunks cost no time; with 128 rows they cost 8 %.
constexpr std::int64_t kChunkRows = 512;
constexpr std::int64_t kSmallBuffer_bytes = std::int64_t{16} << 20;  // smaller logits need no chunks
/// The weight gradient is a sum over chunks; in 16 bits each addition rounds it, so there are few chunks.
constexpr std::int64_t kMaxChunks16 = 4;

/// \param room_bytes  for logits
std::int64_t chunk_rows(std::int64_t tokens, std::int64_t row_bytes, std::int64_t room_bytes, bool narrow) {
  auto rows = std::max(kChunkRows, std::max(kSmallBuffer_bytes, room_bytes) / row_bytes);
  if (narrow) rows = std::max(rows, (tokens + kMaxChunks16 - 1) / kMaxChunks16);
  const auto chunks = (tokens + rows - 1) / rows;
  return (tokens + chunks - 1) / chunks;  // equal chunks
}

}  // namespace

LogitChunks::LogitChunks(const Ops& ops, const Decoder& decoder, std::vector<int> parameters)
    : ops_(ops),
      config_(decoder.config),
      adapter_(ops, decoder),
      parameters_(std::move(parameters)),
      weight_(parameters_.size() - 1) {
  parameters_.insert(parameters_.end(), adapter_.parameters().begin(), adapter_.parameters().end());
}

void LogitChunks::forward(LayerParams p, const MicroBatch& batch, at::Tensor x_ND, const Body& body) const {
  const auto normed_ND = final_norm(p, x_ND).out_ND;
  x_ND.reset();
  for_chunks(p, batch, normed_ND, body);
}

void LogitChunks::forward_backward(LayerParams p, LayerGrads g, const MicroBatch& batch, at::Tensor x_ND,
                                   at::Tensor* grad_x_ND, const Body& body, const Body& look) const {
  auto norm = final_norm(p, x_ND);
  const auto norms = g.first(weight_);
  const bool trains_norm = std::any_of(norms.begin(), norms.end(), [](const auto* slot) { return slot != nullptr; });
  const bool into_norm = grad_x_ND != nullptr || trains_norm;
  at::Tensor grad_norm_ND;
  if (into_norm) {
    grad_norm_ND = at::empty_like(norm.out_ND);
  } else {
    x_ND.reset();
    norm.sum_ND.reset();
  }
  const auto back = [&](std::int64_t first, at::Tensor& logits) {
    const auto slope = cap_slope(logits);
    body(first, logits);
    if (slope.defined()) logits.mul_(slope);
    const auto rows = logits.size(0);
    const auto chunk_ND = norm.out_ND.narrow(0, first, rows);
    const auto through_adapter_ND =
        adapter_.backward(adapter_params(p), g.subspan(weight_ + 1), batch, first, chunk_ND, logits);
    if (into_norm) {
      auto part = grad_norm_ND.narrow(0, first, rows);
      ops_.linear_backward_into(part, logits, p[weight_]);
      if (through_adapter_ND.defined()) {
        GradSlot sum{part, true};
        ops_.accumulate(&sum, through_adapter_ND);
      }
    }
    ops_.weight_grad(g[weight_], logits, chunk_ND);
  };
  for_chunks(p, batch, norm.out_ND, back, look);
  if (!into_norm) return;
  auto grad_ND = final_norm_backward(p, g, grad_norm_ND, x_ND, norm);
  if (grad_x_ND != nullptr) *grad_x_ND = std::move(grad_ND);
}

at::Tensor LogitChunks::all(LayerParams p, const at::Tensor& x_ND) const {
  const auto normed_ND = final_norm(p, x_ND).out_ND;
  auto padded = ops_.linear(normed_ND, p[weight_]);
  adapter_.forward(adapter_params(p), {}, 0, normed_ND, padded);
  auto logits = padded.narrow(1, 0, vocabulary()).to(at::kFloat);
  cap_in_place(logits);
  return logits;
}

void LogitChunks::cap_in_place(at::Tensor& logits) const {
  if (cap() > 0) logits.div_(cap()).tanh_().mul_(cap());
}

/// Derivative of c tanh(logit / c), computed from its value; undefined without a soft cap.
at::Tensor LogitChunks::cap_slope(const at::Tensor& capped) const {
  if (cap() == 0) return {};
  return 1 - (capped / cap()).square_();
}

NormResult LogitChunks::final_norm(LayerParams p, const at::Tensor& x_ND) const {
  return is_layer_norm() ? ops_.add_layer_norm(x_ND, {}, {}, p[0], p[1], config_.layer_norm_eps)
                         : ops_.add_rms_norm(x_ND, {}, {}, p[0], rms_norm_of(config_));
}

at::Tensor LogitChunks::final_norm_backward(LayerParams p, LayerGrads g, const at::Tensor& grad_ND,
                                            const at::Tensor& x_ND, const NormResult& norm) const {
  const NormBackward backward{grad_ND, {}, x_ND, norm, p[0]};
  return is_layer_norm() ? ops_.layer_norm_backward(backward, {g[0], g[1], nullptr})
                         : ops_.rms_norm_backward(backward, {g[0], nullptr, nullptr});
}

void LogitChunks::for_chunks(LayerParams p, const MicroBatch& batch, const at::Tensor& normed_ND, const Body& body,
                             const Body& look) const {
  const auto& weight_VD = p[weight_];
  const auto n = normed_ND.size(0);
  if (n == 0) return;
  const auto padded_vocab = weight_VD.size(0);
  const auto row_bytes = padded_vocab * static_cast<std::int64_t>(normed_ND.element_size());
  // The cap and an adapter need more memory beside the logits than these.
  const bool alone = cap() == 0 && adapter_params(p).empty();
  // Room for all tokens, however many have targets: predictions hold, and an allocator sees one size.
  const auto all_tokens = std::max(n, batch.rows * batch.length);
  const auto room = chunk_rows(all_tokens, row_bytes, alone ? ops_.logits_bytes() : 0, normed_ND.element_size() < 4);
  const auto chunks = (n + room - 1) / room, rows = (n + chunks - 1) / chunks;  // equal chunks
  const MemoryScope scope(MemoryCategory::logits);
  auto buffer = at::empty({room, padded_vocab}, normed_ND.options());
  const auto compute = [&](std::int64_t chunk) {
    const auto first = chunk * rows, count = std::min(rows, n - first);
    auto logits = buffer.narrow(0, 0, count);
    const auto chunk_ND = normed_ND.narrow(0, first, count);
    ops_.linear_into(logits, chunk_ND, weight_VD);
    adapter_.forward(adapter_params(p), batch, first, chunk_ND, logits);
    cap_in_place(logits);
    return logits;
  };
  if (look && chunks > 1) {
    ops_.repeat(chunks, [&](std::int64_t chunk) {
      auto logits = compute(chunk);
      look(chunk * rows, logits);
    });
  }
  ops_.repeat(chunks, [&](std::int64_t chunk) {
    auto logits = compute(chunk);
    if (look && chunks == 1) look(0, logits);
    body(chunk * rows, logits);
  });
}

}  // namespace fsdp::detail
