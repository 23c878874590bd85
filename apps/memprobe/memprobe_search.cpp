#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "apps/memprobe/memprobe_job.hpp"
#include "lib/base/error.hpp"
#include "lib/base/text_format.hpp"
#include "lib/training/data/data_loader.hpp"

namespace fsdp::detail {

std::int64_t needed_bytes(const MemoryPrediction& prediction) {
  return prediction.on_gpu ? prediction.total_bytes() : prediction.host.peak_bytes();
}

bool fits_budget(const MemoryPrediction& prediction, const MemoryBudget& budget) {
  return budget.gpu ? prediction.fits() : needed_bytes(prediction) + budget.margin_bytes <= budget.host_bytes;
}

std::int64_t headroom(const MemoryPrediction& prediction, const MemoryBudget& budget) {
  if (!budget.gpu) return budget.host_bytes - budget.margin_bytes - needed_bytes(prediction);
  return allocator_capacity(*budget.gpu, prediction.overheads) - budget.margin_bytes - prediction.profile.peak_bytes;
}

std::optional<TokenLoader> open_token_file(const TrainOptions& options, const ModelConfig& config, bool on_gpu) {
  const auto& data = options.train_data;
  std::error_code error;
  if (data.empty() || !std::filesystem::is_regular_file(data, error) || !data.ends_with(".h5")) return std::nullopt;
  TokenLoader loader(data, SequenceLimit{options.model.seq_len, config.block_size}, config.vocab_size);
  if (on_gpu) loader.pad_to(kGpuLengthStep);
  if (options.pack) loader.pack({options.seed, !options.no_shuffle});
  return loader;
}

std::int64_t tokens_per_sequence(const TrainOptions& options, const ModelConfig& config,
                                 const std::optional<TokenLoader>& data) {
  if (data) return data->tokens_per_row();
  const auto& wish = options.model;
  // Texts without a wish are cut to 512 ids; a model from scratch sees all of its positions.
  if (wish.seq_len != 0) return wish.seq_len;
  return wish.model == "mingpt" ? config.block_size : std::min(TokenLoader::kDefaultDocumentIds, config.block_size);
}

std::vector<Combination> combinations(const MemprobeOptions& options, int world_size, int world_ranks_per_node) {
  constexpr std::int64_t kMostRanks = 65536;
  const int ranks = options.ranks == 0 ? world_size : options.ranks;
  int per_node = options.ranks_per_node;
  if (per_node == 0) per_node = options.ranks == 0 ? world_ranks_per_node : ranks;
  std::vector<int> sizes;
  for (const int nodes : options.nodes) {
    const auto size = std::int64_t{nodes} * per_node;
    if (size > kMostRanks) {
      throw UsageError(fmt::format("--nodes {} of {} are {}; at most {}", nodes, format_count_of(per_node, "rank"),
                                   format_count_of(size, "rank"), kMostRanks));
    }
    sizes.push_back(static_cast<int>(size));
  }
  if (sizes.empty()) sizes.push_back(ranks);
  std::vector<Combination> all;
  for (const int size : sizes) {
    for (const auto strategy : options.shardings) {
      for (const auto precision : options.precisions) {
        for (const int checkpoint_every : options.checkpointings) {
          all.push_back({strategy, checkpoint_every, precision, size, per_node});
        }
      }
    }
  }
  return all;
}

std::vector<std::int64_t> allowed_batches(const TrainOptions& options, int ranks, std::int64_t most) {
  std::vector<std::int64_t> batches;
  if (options.total_batch_size == 0) {
    for (std::int64_t b = 1; b <= most; ++b) batches.push_back(b);
    return batches;
  }
  if (options.total_batch_size % ranks != 0) {
    throw UsageError("--total-batch-size " + std::to_string(options.total_batch_size) + " cannot be dealt out to " +
                     std::to_string(ranks) + " ranks equally: give a multiple of " + std::to_string(ranks));
  }
  const auto share = options.total_batch_size / ranks;
  for (std::int64_t b = 1; b <= std::min(share, most); ++b) {
    if (share % b == 0) batches.push_back(b);
  }
  return batches;
}

std::int64_t guess_largest(const std::vector<std::int64_t>& batches,
                           const std::function<std::int64_t(std::int64_t)>& room) {
  if (batches.size() < 2) return batches.empty() ? 0 : batches.front();
  // Memory grows by nearly the same for each sequence.
  const auto first = static_cast<double>(room(batches[0]));
  const auto grown = first - static_cast<double>(room(batches[1]));
  const auto per_row = std::max(1.0, grown / static_cast<double>(batches[1] - batches[0]));
  return batches[0] + static_cast<std::int64_t>(std::max(0.0, std::min(first / per_row, 1e12)));
}

std::int64_t largest_that_fits(const std::vector<std::int64_t>& batches, std::int64_t guess,
                               const std::function<bool(std::int64_t)>& passes) {
  const auto count = static_cast<std::int64_t>(batches.size());
  const auto at = [&](std::int64_t i) { return batches[static_cast<std::size_t>(i)]; };
  std::int64_t low = -1, high = count;  // at(low) passes, at(high) does not
  std::int64_t next = std::upper_bound(batches.begin(), batches.end(), guess) - batches.begin() - 1;
  // Outwards from the guess in doubling strides until the end lies between, then halves.
  for (std::int64_t stride = 1; high - low > 1; stride *= 2) {
    next = std::clamp(next, low + 1, high - 1);
    (passes(at(next)) ? low : high) = next;
    if (high == count) {
      next = low + stride;
    } else if (low < 0) {
      next = high - stride;
    } else {
      next = (low + high) / 2;
    }
  }
  return low < 0 ? 0 : at(low);
}

}  // namespace fsdp::detail
