#include "lib/training/data/step_reader.hpp"

#include <numeric>
#include <system_error>
#include <utility>

namespace fsdp {
namespace {

std::vector<std::int64_t> positions(const StepSlice& slice) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(slice.num_samples));
  std::iota(all.begin(), all.end(), slice.first_position);
  return all;
}

}  // namespace

std::vector<MicroBatch> StepReader::read_now(std::int64_t first, std::int64_t samples) {
  const auto per_round = options_.micro_batch_size * options_.ranks.size;
  const auto micro_batches = static_cast<int>((samples + per_round - 1) / per_round);
  std::vector<MicroBatch> batches;
  for (int m = 0; m < micro_batches; ++m) {
    const auto slice = micro_batch_slice(first, samples, m, options_.ranks, options_.micro_batch_size);
    std::vector<std::uint64_t> keys;
    for (std::int64_t i = 0; options_.has_dropout && i < slice.num_samples; ++i)
      keys.push_back(sample_key(options_.seed, slice.first_position + i));
    batches.push_back(loader_.read(positions(slice), keys));
  }
  return batches;
}

std::vector<MicroBatch> StepReader::read(std::int64_t first, std::int64_t samples) {
  auto ahead = std::exchange(ahead_, {});
  if (ahead.valid()) {
    ahead.wait();
    if (ahead_first_ == first && ahead_samples_ == samples) return ahead.get();
  }
  return read_now(first, samples);
}

void StepReader::read_ahead(std::int64_t first, std::int64_t samples) {
  wait();
  ahead_first_ = first;
  ahead_samples_ = samples;
  try {
    ahead_ = std::async(std::launch::async, [this, first, samples] { return read_now(first, samples); });
  } catch (const std::system_error&) {
    ahead_ = {};  // no thread could be started: read() reads
  }
}

void StepReader::wait() const {
  if (ahead_.valid()) ahead_.wait();
}

MicroBatch StepReader::read_micro_batch(const StepSlice& slice) {
  wait();
  return loader_.read(positions(slice));
}

}  // namespace fsdp
