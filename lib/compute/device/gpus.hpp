#pragma once
// GPUs by name: how much memory a program can have of each. Free of LibTorch.
#include <cstdint>
#include <string>
#include <string_view>

#include "lib/compute/device/device_info.hpp"

namespace fsdp {

struct GpuSpec {
  std::string name;              ///< "a100-80g"
  std::int64_t total_bytes = 0;  ///< what cudaMemGetInfo calls total: the GPU less what the driver sets aside
  int compute_capability = 80;   ///< 10 * major + minor
  int multiprocessors = 108;
};

/// What a rank takes of a GPU outside the caching allocator.
struct DeviceOverheads {
  std::int64_t context_bytes = 0;  ///< CUDA context with the kernels of PyTorch and NCCL that it loads
  std::int64_t nccl_bytes = 0;     ///< NCCL's channel buffers, both mesh axes
};

/// "a100-80g" and so on, or a number of bytes: "79GiB", "80e9", "79.15 GiB".
/// \throws UsageError naming the choices
GpuSpec find_gpu(std::string_view text);

/// The GPU that a driver describes.
GpuSpec gpu_of(const DeviceInfo& info);

/// Names of all GPUs, separated by commas.
std::string gpu_names();

/// "79GiB", "512MB", "1e9", "80G" (GiB). \throws UsageError naming `option`
std::int64_t parse_bytes(std::string_view text, std::string_view option);

/// As parse_bytes(), or "0.5%" of `whole`. \throws UsageError naming `option`
std::int64_t parse_bytes_or_percent(std::string_view text, std::int64_t whole, std::string_view option);

/// The defaults that are assumed where nothing else is said; the source says where the numbers are from.
/// \param communicators  mesh axes with more than one rank
DeviceOverheads usual_overheads(const GpuSpec& gpu, int communicators, bool several_nodes);

}  // namespace fsdp
