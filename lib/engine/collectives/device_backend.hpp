#pragma once
// Interface of a GPU back end, free of CUDA. Programs do not link CUDA; they load the back end at run time.
//
// Everything CUDA lives in libfsdp_cuda.so. Loading it takes 0.6 s and 480 MB, so it happens only where a driver sees a
// device, and every way it can fail is a sentence instead of a crash.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lib/compute/device/gpus.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/compute/tensor/torch_compat.hpp"
#include "lib/engine/collectives/tensor_collectives.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// The caching allocator's own numbers.
struct DeviceMemory {
  std::int64_t allocated_bytes = 0;       ///< in tensors
  std::int64_t allocated_peak_bytes = 0;  ///< highest since start or reset_peak()
  std::int64_t reserved_bytes = 0;        ///< taken from the device, cached blocks included
  std::int64_t reserved_peak_bytes = 0;
  std::int64_t num_alloc_retries = 0;  ///< the cache had to be flushed to serve a request: batch too large
  std::int64_t num_ooms = 0;
};

/// Devices are numbered from 0 among the visible ones. Not thread-safe, except that threads may each use a device of
/// their own.
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  virtual int device_count() const = 0;
  /// Collective over `group`, which must outlive the result.
  /// \throws RuntimeFailure naming the collective library's reason, or the timeout, when the ranks do not get together
  virtual std::unique_ptr<TensorCollectives> make_collectives(ProcessGroup& group, int device) = 0;
  /// Operations on `device`.
  virtual std::unique_ptr<Ops> make_ops(int device) = 0;
  /// Makes `device` the calling thread's current one. \throws RequestError when there is no such device
  virtual void set_device(int device) = 0;
  virtual DeviceInfo info(int device) const = 0;
  virtual DeviceMemory memory(int device) const = 0;
  /// Memory of the device that no process holds, as the driver counts. Makes a context if there is none.
  virtual std::int64_t free_bytes(int device) const = 0;
  virtual void reset_peak(int device) = 0;
  /// The device gets back what the caching allocator holds for no tensor. Waits for the device.
  virtual void release_cached(int device) = 0;
  /// Takes memory of the device outside the caching allocator, until the result goes.
  /// \throws RuntimeFailure saying "out of memory" where there is not that much
  virtual std::shared_ptr<void> hold_memory(int device, std::int64_t bytes) = 0;
  /// Waits until `device` has done all that was asked of it, collectives included. Call it before any other call that
  /// blocks the host on the device (item(), copies to the host): only here does a rank that died become an error.
  /// \throws RuntimeFailure naming the collective that failed, or made no progress within its group's timeout
  virtual void synchronize(int device) = 0;
};

/// Bytes of the device that are in use and not the caching allocator's: contexts, NCCL, other programs.
std::int64_t bytes_outside_allocator(const DeviceBackend& backend, int device);

/// Tells the ranks of a host which GPU each of them uses. Collective. \param backend  null: this rank has no GPU
GpuShare share_gpus(ProcessGroup& node, const DeviceBackend* backend);

/// Loads libfsdp_cuda.so from beside the program (../lib/fsdp, ../lib). Call it before the first tensor: LibTorch
/// remembers for good whether it had CUDA when it was first asked.
/// \param why_not  receives one line when null is returned; may be null
std::shared_ptr<DeviceBackend> load_cuda_backend(std::string* why_not);
/// True if there is such a file. Asks no driver.
bool has_cuda_backend();

namespace detail {

/// Program and backend exchange C++ objects, so both must come from one build. Bump the number with this interface.
inline constexpr const char* kDeviceBackendAbi =
    "fsdp " FSDP_VERSION ", LibTorch " TORCH_VERSION ", device interface 14";

/// The two symbols of libfsdp_cuda.so.
using BackendAbiFunction = const char*();
using MakeBackendFunction = DeviceBackend*(char* error, std::size_t error_bytes);
inline constexpr const char* kBackendAbiSymbol = "fsdp_cuda_backend_abi";
inline constexpr const char* kMakeBackendSymbol = "fsdp_make_cuda_backend";

/// Asks the driver alone, in milliseconds. \return empty when it sees a device, else why it does not
std::string cuda_driver_problem();

/// Paths at which a program in `program_directory` looks for libfsdp_cuda.so.
std::vector<std::filesystem::path> backend_candidates(const std::filesystem::path& program_directory);

/// Loads `library`, which must name `abi` as its own. \param why_not  receives one line when null is returned
std::shared_ptr<DeviceBackend> open_backend(const std::filesystem::path& library, const std::string& abi,
                                            std::string& why_not);

}  // namespace detail
}  // namespace fsdp
