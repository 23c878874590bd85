#include "lib/training/step/label_scores.hpp"

#include <ATen/ops/index_select.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <stdexcept>

#include "lib/base/types/index.hpp"
#include "lib/training/data/dealt_rows.hpp"
#include "lib/training/objectives/reference.hpp"
#include "lib/training/step/sequence_losses.hpp"

namespace fsdp {
namespace {

/// The one target of a sequence.
struct TextTarget {
  std::int64_t token;  ///< place in the micro-batch
  std::int32_t label;
};

/// \param batch  on the host
std::vector<TextTarget> targets_of_texts(const MicroBatch& batch) {
  std::vector<TextTarget> targets;
  const auto* ids = batch.targets_N.const_data_ptr<std::int32_t>();
  for (const auto& [first, length, shared] : sequences_of(batch)) {
    auto token = first + length - 1;
    while (token >= first && ids[token] < 0) --token;
    if (token < first) throw std::logic_error("a text without a label");
    targets.push_back({token, ids[token]});
  }
  return targets;
}

}  // namespace

LabelScores label_scores(ModelRuntime& runtime, const TokenLoader& rows, std::int64_t micro_batch_size,
                         const std::function<void(double done)>& progress) {
  const auto& ranks = runtime.data_ranks();
  const auto labels = runtime.decoder().config.outputs();
  LabelScores scores;
  scores.labels = labels;
  scores.targets.resize(static_cast<std::size_t>(rows.num_records()));
  scores.log_probs.resize(scores.targets.size() * static_cast<std::size_t>(labels));
  const auto per_round = micro_batch_size * ranks.size;
  for (std::int64_t first = 0; first < rows.num_rows(); first += per_round) {
    const auto count = std::min(per_round, rows.num_rows() - first);
    const auto numbers = rows_of_rank(ranks, first, count);
    const auto records = records_in(rows, numbers);
    auto batch = rows.read(numbers);
    const auto targets = targets_of_texts(batch);
    send_to(runtime.ops(), batch);
    std::size_t next = 0;  // of `targets`, which are in order
    forward_logits(runtime, batch, [&](std::int64_t before, at::Tensor& logits_NV) {
      std::vector<std::int64_t> places;
      const auto first_here = next;
      while (next < targets.size() && targets[next].token < before + logits_NV.size(0))
        places.push_back(targets[next++].token - before);
      if (places.empty()) return;
      const auto chosen = logits_NV.narrow(1, 0, labels).index_select(0, at::tensor(places).to(logits_NV.device()));
      const auto log_probs = at::log_softmax(chosen.to(at::kDouble), 1).cpu().contiguous();
      for (std::size_t i = 0; i < places.size(); ++i) {
        const auto record = element(records, static_cast<std::int64_t>(first_here + i));
        scores.targets[to_index(record)] = targets[first_here + i].label;
        std::copy_n(log_probs.const_data_ptr<double>() + static_cast<std::int64_t>(i) * labels, labels,
                    scores.log_probs.begin() + record * labels);
      }
    });
    runtime.synchronize();
    if (progress) progress(static_cast<double>(first + count) / static_cast<double>(rows.num_rows()));
  }
  share_figures(runtime.world(), scores.log_probs);
  share_figures(runtime.world(), scores.targets);
  return scores;
}

}  // namespace fsdp
