#pragma once
// Reads the samples of a run, step by step.
#include <cstdint>
#include <future>
#include <vector>

#include "lib/token_files/sampler.hpp"
#include "lib/training/data/data_loader.hpp"

namespace fsdp {

/// Selects the samples of this rank.
struct StepReaderOptions {
  DataRanks ranks;
  std::int64_t micro_batch_size = 1;
  std::uint64_t seed = 0;
  bool has_dropout = false;  ///< samples get dropout keys
};

/// To be used by one thread at a time.
class StepReader {
 public:
  /// \param loader  reads positions; must outlive this object; another thread reads from it between read_ahead() and
  ///   wait() or read()
  StepReader(const DataLoader& loader, const StepReaderOptions& options) : loader_(loader), options_(options) {}

  /// Reads this rank's micro-batches of the positions [first, first + samples), on the host. Every rank gets the same
  /// number; a micro-batch has no rows where no samples are left. \throws FormatError, IoError of the loader
  std::vector<MicroBatch> read(std::int64_t first, std::int64_t samples);
  /// Starts reading these positions on a thread of its own. Errors are thrown by the read() that asks for them.
  void read_ahead(std::int64_t first, std::int64_t samples);
  /// Waits for the thread of read_ahead().
  void wait() const;
  /// Reads one micro-batch without dropout keys.
  MicroBatch read_micro_batch(const StepSlice& slice);

 private:
  std::vector<MicroBatch> read_now(std::int64_t first, std::int64_t samples);

  const DataLoader& loader_;
  StepReaderOptions options_;
  std::int64_t ahead_first_ = 0, ahead_samples_ = 0;
  std::future<std::vector<MicroBatch>> ahead_;  ///< last member: its thread uses the others
};

}  // namespace fsdp
