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

Sampler::Sampler(std::int64_t num_rows, std::uint64_t seed, bool shuffle, const RowPlace& start)
    : num_rows_(num_rows),
      seed_(seed),
      shuffle_(shuffle),
      begin_(start.samples - start.in_epoch),
      epoch_(start.epoch),
      sizes_(start.sizes) {
  if (num_rows < 1) {
    throw RequestError("a data order needs at least one row, the data set has " + std::to_string(num_rows));
  }
  if (sizes_.empty()) sizes_ = {num_rows};
  if (num_rows < sizes_.back())
    throw RequestError("a data order of " + std::to_string(sizes_.back()) + " rows cannot go on with " +
                       std::to_string(num_rows));
  if (num_rows > sizes_.back()) sizes_.push_back(num_rows);
}

RowPlace Sampler::place(std::int64_t position) const {
  RowPlace place{position, epoch_, position - begin_, sizes_};
  if (place.in_epoch < 0)
    throw std::out_of_range("stream position " + std::to_string(position) + " is before the first, " +
                            std::to_string(begin_));
  if (place.in_epoch < sizes_.back()) return place;
  const auto after = place.in_epoch - sizes_.back();
  place.epoch += 1 + after / num_rows_;
  place.in_epoch = after % num_rows_;
  place.sizes = {num_rows_};
  return place;
}

/// Rows that were added during an epoch follow the others, in an order of their own.
std::vector<std::int64_t> Sampler::permutation_of(const RowPlace& place) const {
  std::vector<std::int64_t> permutation;
  std::int64_t before = 0;
  for (const auto size : place.sizes) {
    auto part = epoch_permutation(size - before, seed_, place.epoch);
    for (auto& row : part) row += before;
    if (before == 0) {
      permutation = std::move(part);
    } else {
      permutation.insert(permutation.end(), part.begin(), part.end());
    }
    before = size;
  }
  return permutation;
}

SampledRow Sampler::sample(std::int64_t position) {
  const auto place = this->place(position);
  SampledRow sample{place.in_epoch, place.epoch, 0};
  if (shuffle_) {
    if (place.epoch != cached_epoch_) {
      permutation_ = permutation_of(place);
      cached_epoch_ = place.epoch;
    }
    sample.row = element(permutation_, place.in_epoch);
  }
  sample.number = sample.row + sample.epoch * num_rows_;
  return sample;
}

std::vector<std::int64_t> Sampler::rows(std::int64_t first_position, std::int64_t count) {
  std::vector<std::int64_t> result;
  result.reserve(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)));
  for (std::int64_t i = 0; i < count; ++i) result.push_back(row(first_position + i));
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
