#pragma once
// Chooses the samples of a step by pure functions of (seed, position), so that any number of ranks continues a run at
// the exact sample where another number of ranks left it.
#include <cstdint>
#include <vector>

#include "lib/base/types/data_ranks.hpp"

namespace fsdp {

/// A permutation of [0, num_rows) that depends on (seed, epoch) alone and is equal on every platform: Fisher-Yates from
/// the last element down, element i swapped with element j, j uniform in [0, i] by rejection, with the numbers of
/// splitmix64 (Steele, Lea, Flood, OOPSLA 2014) started at mix(mix(seed) + epoch), where mix is its output function.
/// Frozen: a saved run continues in the order it began with.
/// \param num_rows  >= 0
std::vector<std::int64_t> epoch_permutation(std::int64_t num_rows, std::uint64_t seed, std::int64_t epoch);

/// A place in the stream of samples of one set of rows.
struct RowPlace {
  std::int64_t samples = 0;   ///< before it, in all epochs
  std::int64_t epoch = 0;     ///< epochs that are through
  std::int64_t in_epoch = 0;  ///< samples of the present epoch before it
  /// Numbers of rows in the present epoch, rising: those that it began with, and then each number that there has been
  /// since. The rows that came later are the epoch's last. Empty: the epoch begins here.
  std::vector<std::int64_t> sizes;

  /// Passes over the rows before it, as 1.25. \pre sizes is not empty
  double epochs() const {
    return static_cast<double>(epoch) + static_cast<double>(in_epoch) / static_cast<double>(sizes.back());
  }
};

struct SampledRow {
  std::int64_t row = 0;
  std::int64_t epoch = 0;
  std::int64_t number = 0;  ///< row plus as many rows for every earlier epoch, so that it is unique across epochs
};

/// The endless stream of samples: position p is row perm_{p / num_rows}[p % num_rows], perm_e = epoch_permutation of
/// epoch e; without shuffling it is row p % num_rows. A stream that goes on after rows were added first ends its epoch:
/// with what is left of the old rows, then with the new ones.
/// Keeps the permutation of one epoch (8 bytes per row), so positions should be visited in rising order. One object per
/// thread.
class Sampler {
 public:
  /// \param start  the first position, and where the rows stand there
  /// 	hrows RequestError when num_rows < 1 or is less than start's rows
  Sampler(std::int64_t num_rows, std::uint64_t seed, bool shuffle, const RowPlace& start = {});

  std::int64_t num_rows() const { return num_rows_; }
  /// \param position  at least that of the start's epoch. \throws std::out_of_range
  SampledRow sample(std::int64_t position);
  std::int64_t row(std::int64_t position) { return sample(position).row; }
  RowPlace place(std::int64_t position) const;
  /// The rows of positions [first_position, first_position + count).
  std::vector<std::int64_t> rows(std::int64_t first_position, std::int64_t count);

 private:
  std::vector<std::int64_t> permutation_of(const RowPlace& place) const;

  std::int64_t num_rows_;
  std::uint64_t seed_;
  bool shuffle_;
  std::int64_t begin_ = 0, epoch_ = 0;  ///< position and number of the start's epoch
  std::vector<std::int64_t> sizes_;     ///< of that epoch
  std::int64_t cached_epoch_ = -1;
  std::vector<std::int64_t> permutation_;
};

/// A run of consecutive stream positions; num_samples may be 0.
struct StepSlice {
  std::int64_t first_position;
  std::int64_t num_samples;
};

/// The samples of one micro-batch on one rank: positions step_first + (micro_batch * ranks.size + ranks.rank) * b + [0,
/// b), b = micro_batch_size, clipped to the step_samples positions that the step has. Over all ranks and micro-batches
/// 0 .. ceil(step_samples / (ranks.size * b)) - 1 each sample of the step comes up exactly once, whatever ranks.size
/// and b are. \param step_first    stream position of the step's first sample \param step_samples  samples of this step
/// over all ranks and micro-batches \throws std::invalid_argument when an argument is negative, ranks.rank is not in
/// [0, ranks.size) or b < 1
StepSlice micro_batch_slice(std::int64_t step_first, std::int64_t step_samples, int micro_batch, DataRanks ranks,
                            std::int64_t micro_batch_size);

}  // namespace fsdp
