#include "lib/run/batches.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "lib/base/error.hpp"

namespace fsdp {

BatchReader::BatchReader(const std::filesystem::path& file, std::int64_t seq_len, std::int64_t vocab_size)
    : rows_(file), pairs_(std::min(seq_len, rows_.row_length() - 1)), vocab_size_(vocab_size) {
  if (seq_len < 1) throw UsageError("--seq-len is " + std::to_string(seq_len) + ", it must be at least 1");
}

MicroBatch BatchReader::read(const std::vector<std::int64_t>& rows, const std::vector<std::uint64_t>& sample_keys,
                             at::Device device) const {
  MicroBatch batch;
  batch.rows = static_cast<std::int64_t>(rows.size());
  batch.length = pairs_;
  const auto width = rows_.row_length();
  std::vector<std::int32_t> ids(rows.size() * static_cast<std::size_t>(width));
  rows_.read_rows(rows, ids);
  check_token_ids(ids, vocab_size_, rows_.file(), rows);
  batch.ids_N = at::empty({batch.rows * pairs_}, at::kInt);
  batch.targets_N = at::empty({batch.rows * pairs_}, at::kInt);
  for (std::int64_t r = 0; r < batch.rows; ++r) {
    const auto* row = ids.data() + r * width;
    std::copy_n(row, pairs_, batch.ids_N.data_ptr<std::int32_t>() + r * pairs_);
    std::copy_n(row + 1, pairs_, batch.targets_N.data_ptr<std::int32_t>() + r * pairs_);
  }
  if (!sample_keys.empty()) {
    batch.sample_keys = at::empty({batch.rows}, at::kLong);
    for (std::size_t r = 0; r < sample_keys.size(); ++r) {
      batch.sample_keys.data_ptr<std::int64_t>()[r] = static_cast<std::int64_t>(sample_keys[r]);
    }
  }
  if (!device.is_cpu()) {
    batch.ids_N = batch.ids_N.to(device);
    batch.targets_N = batch.targets_N.to(device);
  }
  return batch;
}

std::uint64_t sample_key(std::uint64_t seed, std::int64_t position) {
  // splitmix64's output function over both numbers.
  std::uint64_t z = seed * 0x9e3779b97f4a7c15ull + static_cast<std::uint64_t>(position) + 0x632be59bd9b4e019ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

std::int64_t count_targets(const MicroBatch& batch) {
  if (batch.rows == 0) return 0;
  return batch.targets_N.ge(0).sum().item<std::int64_t>();
}

}  // namespace fsdp
