#pragma once
// What is known of GPUs without asking one. Free of LibTorch.
#include <cstdint>
#include <span>
#include <string_view>

namespace fsdp {

struct GpuFacts {
  const char* name;        ///< as --gpu takes it: "a100-40g"
  std::int64_t total_mib;  ///< what the driver reports as the device's total memory
  int compute_capability;  ///< 10 * major + minor
  int multiprocessors;
};

std::span<const GpuFacts> known_gpus();

/// Dense matrix products of a device that calls itself `device_name` ("NVIDIA A100-SXM4-40GB"), in TFLOP/s.
struct GpuPeak {
  double bf16 = 0;     ///< 16 bits, tensor cores; 0: not known
  double float32 = 0;  ///< without TF32, which is off by default
};
GpuPeak peak_of_gpu(std::string_view device_name);

}  // namespace fsdp
