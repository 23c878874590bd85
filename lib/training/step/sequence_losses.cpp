#include "lib/training/step/sequence_losses.hpp"

#include <algorithm>

#include "lib/base/types/index.hpp"
#include "lib/compute/tensor/without_autograd.hpp"

namespace fsdp {
namespace {

/// Adds the losses of a piece of a micro-batch's tokens to those of the sequences that they belong to.
void add_losses(const Ops& ops, const MicroBatch& batch, std::int64_t first, at::Tensor& logits_NV, std::int64_t vocab,
                const std::vector<SequenceLoss>& sequences, std::vector<StepSums>& sums) {
  const auto end = first + logits_NV.size(0);
  const auto ends_before = [](const SequenceLoss& one, std::int64_t token) { return one.first + one.length <= token; };
  for (auto one = std::lower_bound(sequences.begin(), sequences.end(), first, ends_before);
       one != sequences.end() && one->first < end; ++one) {
    const auto begin = std::max(first, one->first);
    const auto count = std::min(end, one->first + one->length) - begin;
    auto logits = logits_NV.narrow(0, begin - first, count);
    auto& sum = element(sums, one - sequences.begin());
    ops.cross_entropy(sum, logits, batch.targets().narrow(begin, count), vocab, 0.0);
  }
}

}  // namespace

void forward_logits(ModelRuntime& runtime, const MicroBatch& batch, const LogitsBody& body) {
  const WithoutAutograd guard;
  // Same chunk size as the training loss: fewer rows slow the matrix product down.
  constexpr std::int64_t kRows = 512, kSmall_bytes = std::int64_t{16} << 20;
  const auto row_bytes = runtime.decoder().config.outputs() * static_cast<std::int64_t>(sizeof(float));
  const auto piece = std::max(kRows, kSmall_bytes / row_bytes);
  const auto& head = *runtime.decoder().loss;
  const auto end = runtime.engine().forward(batch);
  if (!end.x_ND().defined()) return;
  const auto tokens = end.x_ND().size(0);
  for (std::int64_t first = 0; first < tokens; first += piece) {
    auto logits_NV = head.logits(end.params(), end.x_ND().narrow(0, first, std::min(piece, tokens - first)));
    // Its rows may be padded: seen with the padding they need not be copied.
    logits_NV = logits_NV.as_strided({logits_NV.size(0), logits_NV.stride(0)}, {logits_NV.stride(0), 1});
    body(first, logits_NV);
  }
}

std::vector<SequenceLoss> sequence_losses(ModelRuntime& runtime, const MicroBatch& batch) {
  std::vector<SequenceLoss> sequences;
  for (const auto& [first, length, shared] : sequences_of(batch)) sequences.push_back({first, length});
  std::vector<StepSums> sums(sequences.size());
  forward_logits(runtime, batch, [&](std::int64_t first, at::Tensor& logits_NV) {
    add_losses(runtime.ops(), batch, first, logits_NV, runtime.decoder().config.outputs(), sequences, sums);
  });
  runtime.synchronize();
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    runtime.ops().fetch(sums[i]);
    sequences[i].nats = sums[i].nats;
    sequences[i].weight = sums[i].weight;
  }
  return sequences;
}

}  // namespace fsdp
