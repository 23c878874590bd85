#pragma once
// What a GPU and its libraries say of themselves. Free of LibTorch.
#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fsdp {

/// Version of a driver or library; 0.0.0 when it could not be told.
struct LibraryVersion {
  int major = 0;
  int minor = 0;
  int patch = 0;
  auto operator<=>(const LibraryVersion&) const = default;
};

struct DeviceInfo {
  std::string name;       ///< "NVIDIA A100-SXM4-40GB"
  int compute_major = 0;  ///< compute capability: 8.0 and above compute in bf16 natively
  int compute_minor = 0;
  int multiprocessors = 0;
  std::int64_t total_bytes = 0;
  LibraryVersion driver;      ///< newest CUDA the driver can run
  LibraryVersion runtime;     ///< CUDA runtime in use
  LibraryVersion nccl_built;  ///< NCCL whose headers were compiled against
  LibraryVersion nccl;        ///< NCCL in use
  std::string pci_bus_id;     ///< "0000:3b:00.0"
  int numa_node = -1;         ///< -1: the kernel does not say
};

// What is known of GPUs without asking one. Free of LibTorch.

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

// GPUs by name: how much memory a program can have of each. Free of LibTorch.

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
