#pragma once
// Random rows from a loader that observes its reads.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/training/data/data_loader.hpp"

namespace fsdp::test {

/// Notes which thread read last, and fails on a damaged row. For one thread at a time.
class WatchedLoader final : public DataLoader {
 public:
  WatchedLoader(std::int64_t rows, std::int64_t pairs, std::int64_t vocab_size) : rows_(rows, pairs, vocab_size) {}

  std::int64_t num_rows() const override { return rows_.num_rows(); }
  MicroBatch read(const std::vector<std::int64_t>& rows, const std::vector<std::uint64_t>& keys) const override {
    is_reading_ = true;
    reader_ = std::this_thread::get_id();
    std::this_thread::sleep_for(delay);
    is_reading_ = false;
    reads_ += 1;
    for (const auto row : rows) {
      if (row == damaged) throw FormatError("row " + std::to_string(row) + " is damaged");
    }
    return rows_.read(rows, keys);
  }
  int reads() const { return reads_; }
  bool is_reading() const { return is_reading_; }
  /// Returns the thread that read last. Call after waiting for the reader.
  std::thread::id reader() const { return reader_; }

  std::int64_t damaged = -1;
  std::chrono::milliseconds delay{0};

 private:
  RandomLoader rows_;
  mutable std::atomic<int> reads_ = 0;
  mutable std::atomic<bool> is_reading_ = false;
  mutable std::thread::id reader_;
};

}  // namespace fsdp::test
