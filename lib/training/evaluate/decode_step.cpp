#include "lib/training/evaluate/decode_step.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "lib/compute/ops/rowwise_ops.hpp"
#include "lib/compute/tensor/without_autograd.hpp"
#include "lib/models/config/rope.hpp"

namespace fsdp {
namespace {

MicroBatch one_sequence(std::span<const std::int32_t> ids, std::int64_t first_position, const Ops& ops) {
  MicroBatch batch;
  batch.rows = 1;
  batch.length = std::ssize(ids);
  batch.first_position = first_position;
  batch.ids_N = at::empty({batch.length}, at::kInt);
  std::copy(ids.begin(), ids.end(), batch.ids_N.data_ptr<std::int32_t>());
  batch.ids_N = ops.to_device(batch.ids_N);
  return batch;
}

/// The parts below each other, and zeros up to `rows`.
at::Tensor joined(std::vector<at::Tensor> parts, std::int64_t rows) {
  std::int64_t count = 0;
  for (const auto& part : parts) count += part.size(0);
  if (count < rows) parts.push_back(parts.front().new_zeros({rows - count, parts.front().size(1)}));
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

}  // namespace

void DecodedSequence::replace(std::vector<std::int32_t> new_ids) {
  const auto common = std::mismatch(ids.begin(), ids.end(), new_ids.begin(), new_ids.end()).first - ids.begin();
  ids = std::move(new_ids);
  // The last id is computed in any case: its logits are wanted.
  cached = std::clamp<std::int64_t>(std::ssize(ids) - 1, 0, std::min(cached, common));
  for (const auto& cache : caches) {
    if (cache.first_position > 0) cached = 0;
  }
}

void decode_segments(ModelRuntime& runtime, std::span<const DecodeSegment> segments, std::int64_t least_rows,
                     const DecodedBody& body) {
  const WithoutAutograd guard;
  auto& engine = runtime.engine();
  const auto& decoder = runtime.decoder();
  const auto num_blocks = decoder.blocks.size();
  std::vector<DecodePart> parts;
  for (const auto& segment : segments)
    parts.push_back({std::ssize(segment.ids), segment.cached, nullptr, segment.keeps});
  at::Tensor x_ND;
  {
    const auto embedding = engine.gathered(0);
    std::vector<at::Tensor> embedded;
    for (const auto& segment : segments) {
      const auto batch = one_sequence(segment.ids, segment.cached, runtime.ops());
      embedded.push_back(decoder.layers[0]->forward(embedding.params(), batch, {}, nullptr));
    }
    if (!parts.empty()) x_ND = joined(std::move(embedded), least_rows);
  }
  for (std::size_t b = 0; b < num_blocks; ++b) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto of_block = [&](std::span<LayerCache> caches) { return &caches[caches.size() == 1 ? 0 : b]; };
      parts[i].cache = of_block(segments[i].caches);
      if (!segments[i].beginning.empty()) parts[i].beginning = of_block(segments[i].beginning);
    }
    const auto block = engine.gathered(b + 1);
    if (!parts.empty()) x_ND = decoder.blocks[b]->decode(block.params(), x_ND, parts);
  }
  const auto head = engine.gathered(num_blocks + 1);
  body(head.params(), x_ND);
}

at::Tensor decode_step(ModelRuntime& runtime, std::span<DecodedSequence* const> sequences,
                       const DecodeOptions& options) {
  const auto& decoder = runtime.decoder();
  const auto positions = longest_row(decoder.config);
  const auto least_rows = options.alike ? RowwiseOps::kRowsAlike : 0;
  std::vector<DecodeSegment> segments;
  for (auto* sequence : sequences) {
    const auto length = std::ssize(sequence->ids);
    sequence->caches.resize(decoder.blocks.size());
    // Positions are absolute: past the last one the window slides and nothing cached stays valid; neither does it where
    // rotary frequencies depend on the length.
    if (options.no_cache || length > positions || !same_rope(decoder.config, sequence->cached, length))
      sequence->cached = 0;
    const auto count = std::min(length, positions) - sequence->cached;
    segments.push_back(
        {std::span(sequence->ids).last(static_cast<std::size_t>(count)), sequence->cached, sequence->caches});
  }
  at::Tensor logits_NV;
  decode_segments(runtime, segments, least_rows, [&](LayerParams head, const at::Tensor& x_ND) {
    if (segments.empty()) return;
    std::vector<at::Tensor> last;
    std::int64_t end = 0;
    for (const auto& segment : segments) last.push_back(x_ND.narrow(0, (end += std::ssize(segment.ids)) - 1, 1));
    logits_NV = decoder.loss->logits(head, joined(std::move(last), least_rows));
  });
  for (auto* sequence : sequences) sequence->cached = std::ssize(sequence->ids);
  if (segments.empty()) return at::empty({0, decoder.config.vocab_size});
  logits_NV = logits_NV.narrow(0, 0, std::ssize(segments));
  return runtime.ops().to_host(logits_NV.contiguous());
}

}  // namespace fsdp
