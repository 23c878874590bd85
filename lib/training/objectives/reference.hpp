#pragma once
// Log-probabilities of the sequences of a data set by a model, with which preferences are compared.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/training/data/data_loader.hpp"

namespace fsdp {

/// Computes the log-probability of the targets of each record that `rows` reads, as a step of training computes it, so
/// that a model compared with itself differs by nothing. Collective; the same result on every rank: as many numbers as
/// rows.num_references().
/// \param micro_batch_size  rows on one rank
/// \param progress          called on every rank with the share that is done
/// \param stopped           asked before each micro-batch, the same answer on every rank. \return nothing: it was
/// stopped
std::optional<std::vector<double>> sequence_log_probs(ModelRuntime& runtime, const TokenLoader& rows,
                                                      std::int64_t micro_batch_size,
                                                      const std::function<void(double done)>& progress,
                                                      const std::function<bool()>& stopped);

/// Each figure is one rank's and zero on the others: the sums are the figures, bit for bit. Collective.
void share_figures(ProcessGroup& world, std::span<double> figures);

/// The ids and masks that `rows` reads, as a hash, and their largest id. Reads all of them.
struct RecordsDigest {
  std::string hash;
  std::int32_t largest_id = 0;
};
RecordsDigest digest_of(const TokenLoader& rows);

/// Writes log-probabilities as a NumPy array of float64 (.npy), whose header has the hash of their records as a
/// comment. The file appears when it is complete. \throws RuntimeFailure when one is not finite; IoError
void write_log_probs(const std::filesystem::path& file, std::span<const double> log_probs, const std::string& hash);
/// \param records  how many there must be. \param hash  of the records, which the file must have if it has any
/// \throws FormatError naming the file and what was expected; IoError
std::vector<double> read_log_probs(const std::filesystem::path& file, std::int64_t records, const std::string& hash);

}  // namespace fsdp
