#pragma once
// Log-probabilities of the sequences of a data set by a model, with which preferences are compared.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/training/data/data_loader.hpp"

namespace fsdp {

/// Computes the log-probability of the targets of each record that `rows` reads, as a step of training computes it, so
/// that a model compared with itself differs by nothing. Collective; the same result on every rank.
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

/// Writes them as a NumPy array of float64 (.npy). The file appears when it is complete. \throws IoError
void write_log_probs(const std::filesystem::path& file, std::span<const double> log_probs);
/// \param records  how many there must be. \throws FormatError naming the file and what was expected; IoError
std::vector<double> read_log_probs(const std::filesystem::path& file, std::int64_t records);

}  // namespace fsdp
