#pragma once
// What a GPU and its libraries say of themselves. Free of LibTorch.
#include <compare>
#include <cstdint>
#include <string>

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

}  // namespace fsdp
