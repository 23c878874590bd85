#pragma once
// What is known of GPUs without asking one. Free of LibTorch.
#include <cstdint>
#include <span>
#include <string_view>

namespace fsdp {

/// Dense matrix products, in TFLOP/s.
struct GpuPeak {
  double bf16 = 0;     ///< 16 bits, tensor cores; 0: not known
  double float32 = 0;  ///< without TF32, which is off by default
};

struct GpuFacts {
  const char* name;        ///< as --gpu takes it: "a100-40g"
  std::int64_t total_mib;  ///< what the driver reports as the device's total memory
  int compute_capability;  ///< 10 * major + minor
  int multiprocessors;
  GpuPeak peak;
  double memory_gb_per_s;  ///< of its own memory, as the data sheet says
  double link_gb_per_s;    ///< to others of its node, one direction: NVLink where that is usual, else PCIe
};

std::span<const GpuFacts> known_gpus();

/// Of a GPU that calls itself `device_name` ("NVIDIA A100-SXM4-40GB"), or is called so by --gpu.
GpuPeak peak_of_gpu(std::string_view device_name);

/// The GPU of that make whose memory is nearest; of one that is not known that of its compute capability whose memory
/// is, or the first of the table. \param device_name  as the driver or as --gpu calls it
const GpuFacts& facts_of_gpu(std::string_view device_name, std::int64_t total_bytes, int compute_capability);

}  // namespace fsdp
