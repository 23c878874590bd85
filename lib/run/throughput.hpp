#pragma once
// How fast the hardware could be, and how much memory a run will take: for the log's percentages and --dry-run.
#include <cstdint>

#include "lib/config/model_config.hpp"
#include "lib/run/model_runtime.hpp"

namespace fsdp {

/// Floating-point operations per second of one rank's device for matrix products in `dtype`: measured on a CPU (a
/// 1536-cubed product, best of three), the data sheet's dense figure for a known GPU, 0 when unknown or hopeless.
double peak_flops(const DeviceChoice& device, at::ScalarType dtype);

/// Bytes per rank.
struct MemoryEstimate {
  double states = 0;     ///< masters, optimizer state, gradient shards
  double gathered = 0;   ///< gathered parameters beyond this rank's rows
  double gradients = 0;  ///< full gradients waiting for their reduction
  double activations = 0;
  double logits = 0;
  double total() const { return states + gathered + gradients + activations + logits; }
};

/// An estimate by formula for `rows` sequences of `length` tokens per micro-batch.
MemoryEstimate estimate_memory(ModelRuntime& runtime, std::int64_t rows, std::int64_t length, int accumulation_steps);

/// Memory of this machine in bytes, 0 when unknown.
double machine_memory_bytes();

}  // namespace fsdp
