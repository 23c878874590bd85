#pragma once
// GPUs: what a driver reports, data sheets of known models, and memory that a program can use. Free of LibTorch.
#include <bit>
#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

/// Version of a driver or library; 0.0.0 if unknown.
struct LibraryVersion {
  int major = 0;
  int minor = 0;
  int patch = 0;
  auto operator<=>(const LibraryVersion&) const = default;
};

/// Properties that the driver and the libraries report for a GPU.
struct DeviceInfo {
  std::string name;       ///< "NVIDIA A100-SXM4-40GB"
  int compute_major = 0;  ///< compute capability: 8.0 and above compute in bf16 natively
  int compute_minor = 0;
  int multiprocessors = 0;
  std::int64_t total_bytes = 0;
  LibraryVersion driver;      ///< newest CUDA the driver can run
  LibraryVersion runtime;     ///< CUDA runtime in use
  std::string collectives;    ///< library of collectives between GPUs: "NCCL"
  LibraryVersion nccl_built;  ///< that library's version whose headers were compiled against
  LibraryVersion nccl;        ///< that library's version in use
  std::string pci_bus_id;     ///< "0000:3b:00.0"; slices of a GPU (MIG) have the same
  std::string uuid;           ///< of the GPU or slice: "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"; "" if unknown
  int numa_node = -1;         ///< -1: unknown
};

/// Peak rates of dense matrix products, in TFLOP/s.
struct GpuPeak {
  double bf16 = 0;     ///< bf16 and fp16 on tensor cores; 0: unknown
  double float32 = 0;  ///< without TF32, which is off by default
};

/// Data sheet of a GPU model.
struct GpuFacts {
  const char* name;        ///< name for --gpu: "a100-40g"
  std::int64_t total_mib;  ///< total device memory that the driver reports, MiB
  int compute_capability;  ///< 10 * major + minor
  int multiprocessors;
  GpuPeak peak;
  double memory_gb_per_s;  ///< bandwidth of device memory, GB/s
  double link_gb_per_s;    ///< bandwidth to GPUs of the node, one direction, GB/s: NVLink where usual, otherwise PCIe
};

std::span<const GpuFacts> known_gpus();

/// \return peak rates of a GPU. \param device_name  name by the driver ("NVIDIA A100-SXM4-40GB") or by --gpu
GpuPeak peak_of_gpu(std::string_view device_name);

/// \return the known GPU of that model with the nearest memory size; for an unknown model, the one of the same compute
/// capability with the nearest memory size; otherwise the first of the table.
/// \param device_name  name by the driver or by --gpu
const GpuFacts& facts_of_gpu(std::string_view device_name, std::int64_t total_bytes, int compute_capability);

/// A GPU as the memory prediction sees it.
struct GpuSpec {
  std::string name;              ///< "a100-80g"
  std::int64_t total_bytes = 0;  ///< total of cudaMemGetInfo: device memory without the driver's reserve
  int compute_capability = 80;   ///< 10 * major + minor
  int multiprocessors = 108;
};

/// Largest logits of a micro-batch that a GPU computes at once: a power of two up to 1/64 of its memory, so that GPUs
/// of one class, which differ by their driver's reserve, decide alike.
inline std::int64_t logits_bytes_of_gpu(std::int64_t total_bytes) {
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(total_bytes) / 64));
}

/// The GPUs that the ranks of a host use.
struct GpuShare {
  std::vector<int> device;  ///< by rank: number of its GPU among those that the rank sees
  int num_gpus = 0;         ///< different ones that the ranks see
  int first_without = -1;   ///< the first rank that shares its GPU with another; -1: none does
};

/// Gives each rank a GPU of its own as far as there are enough, by preference the one that has the rank's number in the
/// rank's list. Launchers show all ranks the same GPUs, or each rank some of them.
/// \param visible  by rank of the host: names of the GPUs that it sees, in the order of their numbers; may be empty
GpuShare share_gpus(const std::vector<std::vector<std::string>>& visible);

/// GPU memory of a rank outside the caching allocator.
struct DeviceOverheads {
  std::int64_t context_bytes = 0;  ///< CUDA context with the kernels of PyTorch and NCCL that it loads
  std::int64_t nccl_bytes = 0;     ///< NCCL's channel buffers, both mesh axes
};

/// \param text  a known name such as "a100-80g", or a number of bytes: "79GiB", "80e9", "79.15 GiB"
/// \throws RequestError naming the choices
GpuSpec find_gpu(std::string_view text, std::string_view option = "gpu");

/// \return the GPU that the driver reports
GpuSpec gpu_of(const DeviceInfo& info);

/// Names of all GPUs, separated by commas.
std::string gpu_names();

/// "79GiB", "512MB", "1e9", "80G" (GiB). \throws RequestError naming `option`
std::int64_t parse_bytes(std::string_view text, std::string_view option);

/// Parses bytes as parse_bytes(), or a percentage of `whole` such as "0.5%". \throws RequestError naming `option`
std::int64_t parse_bytes_or_percent(std::string_view text, std::int64_t whole, std::string_view option);

/// Default overheads; gpus.cpp gives the sources of the numbers.
/// \param communicators  mesh axes with more than one rank
DeviceOverheads usual_overheads(const GpuSpec& gpu, int communicators, bool several_nodes);

}  // namespace fsdp
