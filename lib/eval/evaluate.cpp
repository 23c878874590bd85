#include "lib/eval/evaluate.hpp"

#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "lib/base/elapsed.hpp"
#include "lib/eval/logits.hpp"

namespace fsdp {
namespace {

/// This rank's rows of the round that begins at `first`. The last round is dealt out evenly, so that no rank computes a
/// whole micro-batch while the others have nothing.
std::vector<std::int64_t> rows_of_rank(const ProcessGroup& world, std::int64_t first, std::int64_t count) {
  const auto begin = first + count * world.rank() / world.size();
  const auto end = first + count * (world.rank() + 1) / world.size();
  std::vector<std::int64_t> rows(static_cast<std::size_t>(end - begin));
  std::iota(rows.begin(), rows.end(), begin);
  return rows;
}

/// Bytes of the text of all targets: run by run of them that of the run and the id before it, less that of this id. A
/// row's beginning may lose a space that the vocabulary puts before every text.
double target_bytes(const Tokenizer& tokenizer, const MicroBatch& batch, std::int64_t row) {
  const auto* inputs = batch.ids_N.const_data_ptr<std::int32_t>() + row * batch.length;
  const auto* targets = batch.targets_N.const_data_ptr<std::int32_t>() + row * batch.length;
  double bytes = 0;
  for (std::int64_t i = 0; i < batch.length; ++i) {
    if (targets[i] < 0) continue;
    std::vector<std::int32_t> ids{inputs[i]};
    for (; i < batch.length && targets[i] >= 0; ++i) ids.push_back(targets[i]);
    bytes += static_cast<double>(tokenizer.decode(ids).size()) -
             static_cast<double>(tokenizer.decode(std::span(ids).first(1)).size());
  }
  return bytes;
}

/// Each figure is one rank's and zero on the others: the sums are the figures, bit for bit.
void share_figures(ProcessGroup& world, std::span<double> figures) {
  constexpr std::size_t kBlock = 1 << 16;  // a reduction takes memory for every rank's values
  for (std::size_t first = 0; first < figures.size(); first += kBlock) {
    world.all_reduce(figures.subspan(first, std::min(kBlock, figures.size() - first)), Reduce::sum);
  }
}

/// Adds the losses of a piece of a micro-batch's tokens to those of the rows that they belong to.
void add_losses(const Ops& ops, const MicroBatch& batch, std::int64_t first, at::Tensor& logits_NV, std::int64_t vocab,
                std::vector<LossSum>& rows) {
  const auto end = first + logits_NV.size(0);
  for (auto token = first; token < end;) {
    const auto row = token / batch.length;
    const auto count = std::min(end, (row + 1) * batch.length) - token;
    auto part = logits_NV.narrow(0, token - first, count);
    ops.cross_entropy(rows[static_cast<std::size_t>(row)], part, batch.targets_N.narrow(0, token, count), vocab, 0.0);
    token += count;
  }
}

}  // namespace

Evaluation evaluate_rows(ModelRuntime& runtime, const DataLoader& reader, std::int64_t micro_batch_size) {
  const auto start = std::chrono::steady_clock::now();
  auto& world = runtime.world();
  LossSum loss;
  const auto per_round = micro_batch_size * world.size();
  for (std::int64_t first = 0; first < reader.num_rows(); first += per_round) {
    const auto rows = rows_of_rank(world, first, std::min(per_round, reader.num_rows() - first));
    auto batch = reader.read(rows);
    move_to(runtime.device(), batch);
    loss += runtime.engine().evaluate(batch);
    runtime.synchronize();  // a rank that died shows here, not behind a queue that is full
  }
  runtime.ops().fetch(loss);
  std::array<double, 2> sums{loss.loss_sum, static_cast<double>(loss.tokens)};
  world.all_reduce(sums, Reduce::sum);
  Evaluation result;
  result.rows = reader.num_rows();
  result.tokens = static_cast<std::int64_t>(sums[1]);
  result.loss = result.tokens > 0 ? sums[0] / sums[1] : std::numeric_limits<double>::quiet_NaN();
  result.perplexity = std::exp(result.loss);
  result.seconds = seconds_since(start);
  return result;
}

RowScores score_rows(ModelRuntime& runtime, const DataLoader& reader, const ScoreOptions& options,
                     const std::function<void(std::int64_t rows_done)>& progress) {
  auto& world = runtime.world();
  RowScores scores;
  const auto size = static_cast<std::size_t>(options.rows);
  scores.nats.resize(size);
  scores.tokens.resize(size);
  if (options.tokenizer != nullptr) scores.bytes.resize(size);
  const auto per_round = options.micro_batch_size * world.size();
  for (std::int64_t first = 0; first < options.rows; first += per_round) {
    const auto count = std::min(per_round, options.rows - first);
    const auto rows = rows_of_rank(world, first, count);
    auto batch = reader.read(rows);
    for (std::int64_t r = 0; options.tokenizer != nullptr && r < batch.rows; ++r) {
      scores.bytes[static_cast<std::size_t>(rows[static_cast<std::size_t>(r)])] =
          target_bytes(*options.tokenizer, batch, r);
    }
    move_to(runtime.device(), batch);
    std::vector<LossSum> losses(rows.size());
    forward_logits(runtime, batch, [&](std::int64_t begin, at::Tensor& logits_NV) {
      add_losses(runtime.ops(), batch, begin, logits_NV, runtime.decoder().config.vocab_size, losses);
    });
    runtime.synchronize();
    for (std::size_t r = 0; r < rows.size(); ++r) {
      runtime.ops().fetch(losses[r]);
      scores.nats[static_cast<std::size_t>(rows[r])] = losses[r].loss_sum;
      scores.tokens[static_cast<std::size_t>(rows[r])] = static_cast<double>(losses[r].tokens);
    }
    if (progress) progress(first + count);
  }
  for (auto* figures : {&scores.nats, &scores.tokens, &scores.bytes}) share_figures(world, *figures);
  return scores;
}

}  // namespace fsdp
