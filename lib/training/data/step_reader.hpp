#pragma once
// A run's samples, step by step, in the order of its stream.
#include <cstdint>
#include <future>
#include <vector>

#include "lib/text/token_files/sampler.hpp"
#include "lib/training/data/data_loader.hpp"

namespace fsdp {

/// Which of the stream's samples are this rank's.
struct StepReaderOptions {
  int rank = 0, world = 1;
  std::int64_t micro_batch_size = 1;
  std::uint64_t seed = 0;
  bool shuffle = true;
  bool has_dropout = false;  ///< samples need keys
};

/// One thread at a time.
class StepReader {
 public:
  /// \param loader  outlives this; it is read by another thread between read_ahead() and wait() or read()
  StepReader(const DataLoader& loader, const StepReaderOptions& options)
      : loader_(loader), options_(options), order_(loader.num_rows(), options.seed, options.shuffle) {}

  /// This rank's micro-batches of the positions [first, first + samples), on the host: as many on each rank, without
  /// rows where there are none left. \throws FormatError, IoError as the loader does
  std::vector<MicroBatch> read(std::int64_t first, std::int64_t samples);
  /// Starts on what read() is expected to ask for next, on a thread of its own. What goes wrong there read() throws, if
  /// it is asked for that.
  void read_ahead(std::int64_t first, std::int64_t samples);
  /// Until that thread is done.
  void wait() const;
  /// One micro-batch of them, without keys.
  MicroBatch read_micro_batch(const StepSlice& slice);

 private:
  std::vector<MicroBatch> read_now(std::int64_t first, std::int64_t samples);

  const DataLoader& loader_;
  StepReaderOptions options_;
  Sampler order_;
  std::int64_t ahead_first_ = 0, ahead_samples_ = 0;
  std::future<std::vector<MicroBatch>> ahead_;  ///< last: its thread uses the others
};

}  // namespace fsdp
