// Implements DeviceBackend for CUDA and the two symbols that libfsdp_cuda.so exports.
//
// Exceptions cross from this library into the program. Both hide their type information from the linker, but libstdc++
// compares types by name, so a RuntimeFailure thrown here is caught as one there.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string_view>
#include <vector>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/compute/cuda/cuda_handles.hpp"
#include "lib/compute/cuda/cuda_ops.hpp"
#include "lib/engine/collectives/cuda/collectives_library.hpp"
#include "lib/engine/collectives/cuda/connection_watch.hpp"
#include "lib/engine/collectives/device_backend.hpp"

namespace fsdp {
namespace {

using detail::check_cuda;

/// CUDA encodes versions as 1000 * major + 10 * minor.
LibraryVersion cuda_version(int code) { return {code / 1000, code % 1000 / 10, 0}; }

int numa_node_of(const std::string& pci_bus_id) {
  std::ifstream file("/sys/bus/pci/devices/" + ascii_lower(pci_bus_id) + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

/// As nvidia-smi and CUDA_VISIBLE_DEVICES write it; empty for zeros.
std::string uuid_text(const cudaUUID_t& uuid, std::string_view kind) {
  std::string text;
  bool known = false;
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    known = known || byte != 0;
    text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", byte);
  }
  return known ? fmt::format("{}-{}", kind, text) : "";
}

class CudaBackend final : public DeviceBackend {
 public:
  explicit CudaBackend(int device_count) : device_count_(device_count) {}

  int device_count() const override { return device_count_; }

  std::unique_ptr<TensorCollectives> make_collectives(ProcessGroup& group, int device) override {
    const c10::cuda::CUDAGuard guard(checked(device));
    auto made = library_.connect(group, device, make_ops(device));
    connections_->add(made.connection);
    return std::move(made.collectives);
  }

  std::unique_ptr<Ops> make_ops(int device) override {
    const auto facts = info(device);
    return make_cuda_ops(checked(device), 10 * facts.compute_major + facts.compute_minor, facts.total_bytes,
                         [connections = connections_, device](const detail::UniqueEvent& event) {
                           connections->wait_for(event, device);
                         });
  }

  void set_device(int device) override { c10::cuda::set_device(checked(device)); }

  DeviceInfo info(int device) const override {
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, checked(device)), "cudaGetDeviceProperties");
    DeviceInfo info;
    info.name = properties.name;
    info.compute_major = properties.major;
    info.compute_minor = properties.minor;
    info.multiprocessors = properties.multiProcessorCount;
    info.total_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
    int version = 0;
    check_cuda(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
    info.driver = cuda_version(version);
    check_cuda(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
    info.runtime = cuda_version(version);
    info.collectives = library_.name;
    info.nccl_built = library_.built;
    info.nccl = library_.version;
    std::array<char, 32> bus_id{};
    check_cuda(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), device), "cudaDeviceGetPCIBusId");
    info.pci_bus_id = bus_id.data();
    // CUDA's runtime tells the UUID of the slice, not that of its GPU.
    info.uuid = uuid_text(properties.uuid, info.name.find("MIG ") == std::string::npos ? "GPU" : "MIG");
    info.numa_node = numa_node_of(info.pci_bus_id);
    return info;
  }

  DeviceMemory memory(int device) const override {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(checked(device));
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return {stats.allocated_bytes[kAll].current, stats.allocated_bytes[kAll].peak, stats.reserved_bytes[kAll].current,
            stats.reserved_bytes[kAll].peak,     stats.num_alloc_retries,          stats.num_ooms};
  }

  std::int64_t free_bytes(int device) const override {
    const c10::cuda::CUDAGuard guard(checked(device));
    std::size_t free = 0;
    std::size_t total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<std::int64_t>(free);
  }

  void reset_peak(int device) override { c10::cuda::CUDACachingAllocator::resetPeakStats(checked(device)); }

  /// Empties the caches of all devices, since a process uses only one.
  void release_cached(int device) override {
    const c10::cuda::CUDAGuard guard(checked(device));
    c10::cuda::CUDACachingAllocator::emptyCache();
  }

  std::shared_ptr<void> hold_memory(int device, std::int64_t bytes) override {
    const c10::cuda::CUDAGuard guard(checked(device));
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, static_cast<std::size_t>(bytes)), "cudaMalloc");
    return {memory, [](void* p) { static_cast<void>(cudaFree(p)); }};
  }

  void synchronize(int device) override {
    const c10::cuda::CUDAGuard guard(checked(device));
    connections_->wait_for_all(device);
  }

 private:
  c10::DeviceIndex checked(int device) const {
    if (device < 0 || device >= device_count_) {
      throw RequestError(fmt::format("device {} does not exist: {} visible, numbered from 0 (CUDA_VISIBLE_DEVICES)",
                                     device, device_count_));
    }
    return static_cast<c10::DeviceIndex>(device);
  }

  int device_count_;
  detail::CollectivesLibrary library_ = detail::collectives_library();
  std::shared_ptr<detail::ConnectionWatch> connections_ = std::make_shared<detail::ConnectionWatch>();
};

/// Returns " 535.104.05", the release of the kernel's driver; "" where its file is not there or reads differently.
std::string driver_release() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string word;
  for (bool module = false; file >> word;) {
    if (module && word.find_first_not_of("0123456789.") == std::string::npos) return " " + word;
    module = module || word == "Module";
  }
  return "";
}

std::unique_ptr<DeviceBackend> make_backend() {
  int count = 0;
  const auto code = cudaGetDeviceCount(&count);
  if (code == cudaErrorInsufficientDriver) {
    int driver = 0;
    static_cast<void>(cudaDriverGetVersion(&driver));
    const auto has = cuda_version(driver);
    const auto needs = cuda_version(CUDART_VERSION);
    throw RuntimeFailure(
        driver == 0 ? "no NVIDIA driver on this machine"
                    : fmt::format("the NVIDIA driver{} runs CUDA up to {}.{}, this build needs {}.{}: a newer "
                                  "driver is needed, or a build with a torch for CUDA {} (docs/install.md, "
                                  "Drivers and versions of torch)",
                                  driver_release(), has.major, has.minor, needs.major, needs.minor, has.major));
  }
  check_cuda(code, "cudaGetDeviceCount");
  if (count == 0) throw RuntimeFailure("CUDA sees no device (CUDA_VISIBLE_DEVICES)");
  if (!at::detail::getCUDAHooks().hasCUDA()) {
    throw RuntimeFailure("LibTorch was used before the CUDA back end was loaded, and believes that there is no CUDA");
  }
  // Memory predictions and recorded graphs (cuda_graphs.cpp) assume that PyTorch keeps a workspace for cuBLAS and one
  // for cuBLASLt. PyTorch 2.15 does so with these variables alone.
  ::setenv("TORCH_CUBLAS_WORKSPACE_CACHE", "1", 0);
  ::setenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "0", 0);
  // Creates the allocator, so that memory() works before the first tensor. Nothing here may touch a stream or memory,
  // because this would create a context (half a gigabyte) on device 0 for every rank of the node.
  at::globalContext().lazyInitDevice(at::kCUDA);
  return std::make_unique<CudaBackend>(count);
}

void copy_text(const char* text, char* out, std::size_t out_bytes) {
  if (out == nullptr || out_bytes == 0) return;
  const auto length = std::min(std::strlen(text), out_bytes - 1);
  std::memcpy(out, text, length);
  out[length] = '\0';
}

}  // namespace
}  // namespace fsdp

extern "C" {

// Exported by backend.map, which hides all other symbols.
__attribute__((visibility("default"))) const char* fsdp_cuda_backend_abi() { return fsdp::detail::kDeviceBackendAbi; }

/// \return null when CUDA cannot be used, with a one-line reason in `error`; never throws
__attribute__((visibility("default"))) fsdp::DeviceBackend* fsdp_make_cuda_backend(char* error,
                                                                                   std::size_t error_bytes) noexcept {
  try {
    return fsdp::make_backend().release();
  } catch (const std::exception& failure) {
    fsdp::copy_text(failure.what(), error, error_bytes);
  } catch (...) {
    fsdp::copy_text("the CUDA back end failed for an unknown reason", error, error_bytes);
  }
  return nullptr;
}

}  // extern "C"
