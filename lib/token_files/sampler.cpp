#include "lib/token_files/sampler.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/base/types/hash_functions.hpp"
#include "lib/base/types/index.hpp"

namespace fsdp {
namespace {

class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t state) : state_(state) {}
  std::uint64_t next() { return splitmix64_output(state_ += kSplitmix64Step); }
  /// Uniform in [0, bound): the lowest 2^64 mod bound numbers are thrown away, the rest is a multiple of bound.
  std::uint64_t below(std::uint64_t bound) {
    const std::uint64_t unfair = (0 - bound) % bound;  // 2^64 mod bound
    std::uint64_t value = next();
    while (value < unfair) value = next();
    return value % bound;
  }

 private:
  std::uint64_t state_;
};

}  // namespace

std::vector<std::int64_t> epoch_permutation(std::int64_t num_rows, std::uint64_t seed, std::int64_t epoch) {
  std::vector<std::int64_t> permutation(static_cast<std::size_t>(num_rows));
  std::iota(permutation.begin(), permutation.end(), std::int64_t{0});
  SplitMix64 random(splitmix64_output(splitmix64_output(seed) + static_cast<std::uint64_t>(epoch)));
  for (std::size_t i = permutation.size(); i-- > 1;) {
    std::swap(permutation[i], permutation[random.below(i + 1)]);
  }
  return permutation;
}

Sampler::Sampler(std::int64_t num_rows, std::uint64_t seed, bool shuffle)
    : num_rows_(num_rows), seed_(seed), shuffle_(shuffle) {
  if (num_rows < 1) {
    throw RequestError("a data order needs at least one row, the data set has " + std::to_string(num_rows));
  }
}

std::int64_t Sampler::row(std::int64_t position) {
  if (position < 0) throw std::out_of_range("stream position " + std::to_string(position) + " is negative");
  if (!shuffle_) return position % num_rows_;
  const std::int64_t epoch = position / num_rows_;
  if (epoch != cached_epoch_) {
    permutation_ = epoch_permutation(num_rows_, seed_, epoch);
    cached_epoch_ = epoch;
  }
  return element(permutation_, position % num_rows_);
}

std::vector<std::int64_t> Sampler::rows(std::int64_t first_position, std::int64_t count) {
  std::vector<std::int64_t> result;
  result.reserve(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)));
  for (std::int64_t i = 0; i < count; ++i) result.push_back(row(first_position + i));
  return result;
}

std::vector<std::int64_t> Sampler::numbers(std::int64_t first_position, std::int64_t count) {
  auto result = rows(first_position, count);
  for (std::size_t i = 0; i < result.size(); ++i)
    result[i] += (first_position + static_cast<std::int64_t>(i)) / num_rows_ * num_rows_;
  return result;
}

StepSlice micro_batch_slice(std::int64_t step_first, std::int64_t step_samples, int micro_batch, DataRanks ranks,
                            std::int64_t micro_batch_size) {
  if (step_first < 0 || step_samples < 0 || micro_batch < 0 || ranks.rank < 0 || ranks.rank >= ranks.size ||
      micro_batch_size < 1) {
    throw std::invalid_argument("micro_batch_slice: first " + std::to_string(step_first) + ", samples " +
                                std::to_string(step_samples) + ", micro-batch " + std::to_string(micro_batch) +
                                ", rank " + std::to_string(ranks.rank) + " of " + std::to_string(ranks.size) +
                                ", rows " + std::to_string(micro_batch_size));
  }
  const std::int64_t begin = (std::int64_t{micro_batch} * ranks.size + ranks.rank) * micro_batch_size;
  const std::int64_t clipped_begin = std::min(begin, step_samples);
  const std::int64_t clipped_end = std::min(begin + micro_batch_size, step_samples);
  return {.first_position = step_first + clipped_begin, .num_samples = clipped_end - clipped_begin};
}

}  // namespace fsdp
