#pragma once
// How right predictions were: what runs were predicted to take, what they took, and what to make of it. Free of
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

/// One training run: predicted before its first step, measured in its steps; the highest of all ranks. RUN/memory.json.
struct MemoryOutcome {
  std::string device;          ///< "NVIDIA A100-SXM4-40GB"; "cpu"
  std::int64_t gpu_bytes = 0;  ///< of the GPU; 0 on CPUs
  int nodes = 1;
  int communicators = 0;             ///< mesh axes with more than one rank
  std::int64_t predicted_bytes = 0;  ///< peak of the caching allocator's segments; on CPUs of tensors
  std::int64_t measured_bytes = 0;   ///< the same
  std::int64_t overhead_bytes = 0;   ///< of the GPU outside the allocator: context, NCCL
  std::int64_t alloc_retries = 0;
};

/// Of the prediction, as a part of what was measured: negative when it was too low.
double relative_error(const MemoryOutcome& outcome);

nlohmann::json to_json(const MemoryOutcome& outcome);

/// Of a memory.json, a run's directory, or a directory of runs, which may hold none.
/// \throws FormatError naming the file that is none, MissingInput
std::vector<MemoryOutcome> read_memory_outcomes(const std::filesystem::path& path);

/// What runs of a kind have shown.
struct MemoryCalibration {
  int runs = 0;
  double lowest_error = 0;  ///< of relative_error()
  double highest_error = 0;
  std::optional<std::int64_t> overhead_bytes;  ///< the largest of jobs of the kind, see below

  /// What must stay free that the worst of them would have fitted, as a part of what is predicted, 1 at most.
  double margin() const { return lowest_error < 0 ? std::min(1.0, -lowest_error / (1 + lowest_error)) : 0.0; }
};

/// The job that is asked about.
struct CalibrationTarget {
  std::int64_t gpu_bytes = 0;  ///< 0: CPUs
  int communicators = 0;       ///< mesh axes with more than one rank
  bool several_nodes = false;
};

/// Errors are of all runs on GPUs or, for CPUs, of all on CPUs; runs with alloc retries say nothing about the peak they
/// wanted and are left out. Overheads are of runs on such a GPU (memory within 2 %), on one or on several nodes alike,
/// with at least as many communicators.
MemoryCalibration calibrate_memory(std::span<const MemoryOutcome> outcomes, const CalibrationTarget& target);

}  // namespace fsdp
