#include "lib/run/evaluate.hpp"

#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

namespace fsdp {

Evaluation evaluate_rows(ModelRuntime& runtime, const BatchReader& reader, std::int64_t rows_per_micro_batch) {
  const auto start = std::chrono::steady_clock::now();
  auto& world = runtime.world();
  std::array<double, 2> sums{0.0, 0.0};  // loss, tokens
  const auto per_round = rows_per_micro_batch * world.size();
  for (std::int64_t first = 0; first < reader.num_rows(); first += per_round) {
    // The last round is dealt out evenly, so that no rank computes a whole micro-batch while the others have nothing.
    const auto left = std::min(per_round, reader.num_rows() - first);
    const auto begin = first + left * world.rank() / world.size();
    const auto end = first + left * (world.rank() + 1) / world.size();
    std::vector<std::int64_t> rows(static_cast<std::size_t>(end - begin));
    std::iota(rows.begin(), rows.end(), begin);
    const auto loss = runtime.engine().evaluate(reader.read(rows, {}, runtime.device()));
    sums[0] += loss.loss_sum;
    sums[1] += static_cast<double>(loss.tokens);
  }
  world.all_reduce(sums, Reduce::sum);
  Evaluation result;
  result.rows = reader.num_rows();
  result.tokens = static_cast<std::int64_t>(sums[1]);
  result.loss = result.tokens > 0 ? sums[0] / sums[1] : std::numeric_limits<double>::quiet_NaN();
  result.perplexity = std::exp(result.loss);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace fsdp
