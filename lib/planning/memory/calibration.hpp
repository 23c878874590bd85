#pragma once
// Compares predicted and measured peak memory of earlier runs, and derives margins for later predictions. Free of
// LibTorch.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fsdp {

/// One training run: predicted before its first step, measured during its steps; maxima over all ranks. Stored as
/// RUN/memory.json.
struct MemoryOutcome {
  std::string device;          ///< "NVIDIA A100-SXM4-40GB"; "cpu"
  std::int64_t gpu_bytes = 0;  ///< memory of the GPU; 0 on CPUs
  int nodes = 1;
  int communicators = 0;             ///< mesh axes with more than one rank
  std::int64_t predicted_bytes = 0;  ///< predicted peak of the caching allocator's segments; on CPUs of tensors
  std::int64_t measured_bytes = 0;   ///< measured peak of the caching allocator's segments; on CPUs of tensors
  std::int64_t overhead_bytes = 0;   ///< GPU memory outside the allocator: context, NCCL
  std::int64_t alloc_retries = 0;
};

/// \return relative error of the predicted peak, as a fraction of the measured peak; negative when the prediction was
/// too low
double relative_error(const MemoryOutcome& outcome);

nlohmann::json to_json(const MemoryOutcome& outcome);

/// Reads one memory.json, the one of a run's directory, or those of all runs in a directory (possibly none).
/// \throws FormatError naming a file that is not a valid memory.json, MissingInput
std::vector<MemoryOutcome> read_memory_outcomes(const std::filesystem::path& path);

/// Summary of the earlier runs that match a target; see calibrate_memory().
struct MemoryCalibration {
  int runs = 0;
  double lowest_error = 0;  ///< extremes of relative_error()
  double highest_error = 0;
  std::optional<std::int64_t> overhead_bytes;  ///< largest overhead among matching runs; none: no run matches

  /// Memory to keep free so that the worst underestimated run would have fitted, as a fraction of the predicted bytes;
  /// at most 1.
  double margin() const { return lowest_error < 0 ? std::min(1.0, -lowest_error / (1 + lowest_error)) : 0.0; }
};

/// The job that the calibration is for.
struct CalibrationTarget {
  std::int64_t gpu_bytes = 0;  ///< 0: CPUs
  int communicators = 0;       ///< mesh axes with more than one rank
  bool several_nodes = false;
};

/// Summarises earlier runs. Errors come from all runs on GPUs or, for a target on CPUs, from all runs on CPUs; runs
/// with allocation retries are left out, because they did not reach the peak they needed. Overheads come from runs on a
/// GPU of equal memory (within 2 %) that like the target used one node, or several, and at least as many communicators.
MemoryCalibration calibrate_memory(std::span<const MemoryOutcome> outcomes, const CalibrationTarget& target);

}  // namespace fsdp
