#include "lib/training/evaluate/evaluate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/index.hpp"
#include "lib/training/data/dealt_rows.hpp"
#include "lib/training/objectives/reference.hpp"
#include "lib/training/step/sequence_losses.hpp"

namespace fsdp {

namespace {

/// Bytes of the text of all targets: run by run of them that of the run and the id before it, less that of this id. A
/// beginning may lose a space that the vocabulary puts before every text.
double target_bytes(const Tokenizer& tokenizer, const MicroBatch& batch, const Sequence& part) {
  const auto* inputs = batch.ids_N.const_data_ptr<std::int32_t>() + part.first;
  const auto* targets = batch.targets_N.const_data_ptr<std::int32_t>() + part.first;
  double bytes = 0;
  for (std::int64_t i = 0; i < part.length; ++i) {
    if (targets[i] < 0) continue;
    std::vector<std::int32_t> ids{inputs[i]};
    for (; i < part.length && targets[i] >= 0; ++i) ids.push_back(targets[i]);
    bytes += static_cast<double>(tokenizer.decode(ids).size()) -
             static_cast<double>(tokenizer.decode(std::span(ids).first(1)).size());
  }
  return bytes;
}

/// The counts of all rows, by which a joint loss is divided, and their divergence. Reads the data once more.
/// Collective. \return nothing: it was stopped
std::optional<StepCounts> counts_of_all(ModelRuntime& runtime, const Objective& objective, const DataLoader& reader,
                                        std::int64_t per_round, const std::function<MicroBatch(std::int64_t)>& read,
                                        const std::function<bool()>& stopped) {
  std::array<double, 2> counts{};
  Divergence divergence(runtime);
  for (std::int64_t first = 0; first < reader.num_rows(); first += per_round) {
    auto batch = read(first);
    const auto more = weigh(objective, runtime, batch);
    counts[0] += more.count;
    counts[1] += more.tokens;
    if (!objective.needs_divergence()) continue;
    if (stopped && stopped()) return std::nullopt;
    send_to(runtime.ops(), batch);
    divergence.add(batch);
    runtime.synchronize();
  }
  runtime.world().all_reduce(counts, Reduce::sum);
  return StepCounts{counts[0], counts[1], objective.needs_divergence() ? divergence.mean() : 0};
}

}  // namespace

std::optional<Evaluation> evaluate_rows(ModelRuntime& runtime, const Objective& objective, const DataLoader& reader,
                                        std::int64_t micro_batch_size, const std::function<bool()>& stopped) {
  const auto start = std::chrono::steady_clock::now();
  const auto& ranks = runtime.data_ranks();
  StepSums loss;
  std::int64_t tokens = 0;
  const auto per_round = micro_batch_size * ranks.size;
  const auto read = [&](std::int64_t first) {
    return reader.read(rows_of_rank(ranks, first, std::min(per_round, reader.num_rows() - first)));
  };
  const auto counts = objective.needs_counts() ? counts_of_all(runtime, objective, reader, per_round, read, stopped)
                                               : std::optional(StepCounts());
  if (!counts) return std::nullopt;
  for (std::int64_t first = 0; first < reader.num_rows(); first += per_round) {
    if (stopped && stopped()) return std::nullopt;
    auto batch = read(first);
    tokens += batch.num_targets;
    weigh(objective, runtime, batch);
    batch.of_step = *counts;
    send_to(runtime.ops(), batch);
    loss += evaluate(objective, runtime, batch);
    runtime.synchronize();  // reports a dead rank here rather than when the queue is full
  }
  runtime.ops().fetch(loss);
  std::vector<double> sums{loss.nats, loss.weight, static_cast<double>(tokens)};
  for (const auto& sum : loss.named) sums.push_back(sum.value);
  runtime.world().all_reduce(sums, Reduce::sum);
  Evaluation result;
  result.rows = reader.num_rows();
  result.tokens = static_cast<std::int64_t>(sums[2]);
  result.loss = sums[1] > 0 ? sums[0] / sums[1] : std::numeric_limits<double>::quiet_NaN();
  result.perplexity = std::exp(result.loss);
  const auto [first_group, groups] = loss.groups();
  for (std::size_t i = 0; i < loss.named.size(); ++i) {
    if (i >= first_group && i < first_group + 2 * groups) continue;
    const auto& name = loss.named[i].name;
    const double mean = sums[3 + i] * share_of(objective, name, sums[1], sums[2]);
    if (!std::isnan(mean)) result.means.push_back({name, mean});
  }
  result.seconds = seconds_since(start);
  return result;
}

std::vector<std::int64_t> rows_of_records(const TokenLoader& reader, std::int64_t records) {
  const bool is_one_each = !reader.is_packed() && !reader.has_preferences() && !reader.is_judged();
  std::vector<std::int64_t> rows(is_one_each ? records : reader.num_rows());
  std::iota(rows.begin(), rows.end(), 0);
  if (is_one_each) return rows;
  std::erase_if(rows, [&](std::int64_t row) {
    return std::ranges::none_of(reader.records_of(row), [&](auto record) { return record < records; });
  });
  return rows;
}

RowScores score_rows(ModelRuntime& runtime, const TokenLoader& reader, const ScoreOptions& options,
                     const std::function<void(double done)>& progress) {
  const auto& ranks = runtime.data_ranks();
  RowScores scores;
  const auto size = static_cast<std::size_t>(options.records);
  scores.nats.resize(size);
  scores.tokens.resize(size);
  if (options.tokenizer != nullptr) scores.bytes.resize(size);
  const auto wanted = rows_of_records(reader, options.records);
  const auto num_rows = std::ssize(wanted);
  const auto per_round = options.micro_batch_size * ranks.size;
  for (std::int64_t first = 0; first < num_rows; first += per_round) {
    const auto count = std::min(per_round, num_rows - first);
    auto rows = rows_of_rank(ranks, first, count);
    for (auto& row : rows) row = element(wanted, row);
    auto batch = reader.read(rows);
    const auto records = records_in(reader, rows);
    const auto wanted_of = [&](const auto& sequences, const auto& take) {
      for (std::size_t i = 0; i < sequences.size(); ++i) {
        if (records.at(i) < options.records) take(to_index(records[i]), sequences[i]);
      }
    };
    if (options.tokenizer != nullptr) {
      wanted_of(sequences_of(batch), [&](std::size_t record, const Sequence& sequence) {
        scores.bytes[record] = target_bytes(*options.tokenizer, batch, sequence);
      });
    }
    send_to(runtime.ops(), batch);
    wanted_of(sequence_losses(runtime, batch), [&](std::size_t record, const SequenceLoss& sequence) {
      scores.nats[record] = sequence.nats;
      scores.tokens[record] = sequence.weight;
    });
    if (progress) progress(static_cast<double>(first + count) / static_cast<double>(num_rows));
  }
  for (auto* figures : {&scores.nats, &scores.tokens, &scores.bytes}) share_figures(runtime.world(), *figures);
  return scores;
}

}  // namespace fsdp
