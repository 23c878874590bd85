#pragma once
// Copies between device and host memory on streams of their own. Copies of page-locked memory are asynchronous. Copies
// of pageable memory go through two pinned buffers: the device accesses one while the host accesses the other. The
// driver's own path for pageable memory would make the host wait for each piece.
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "lib/compute/cuda/cuda_handles.hpp"
#include "lib/compute/ops/device_work.hpp"

namespace fsdp::detail {

/// Thread-safe; one copy at a time.
class StagedCopies {
 public:
  StagedCopies(c10::DeviceIndex device, EventWait wait) : device_(device), wait_(std::move(wait)) {}
  StagedCopies(const StagedCopies&) = delete;
  StagedCopies& operator=(const StagedCopies&) = delete;
  ~StagedCopies();

  /// Copies after all work of the current stream, collectives included. Returns when the copy is done.
  void to_host(std::byte* to, const std::byte* from, std::size_t bytes);
  /// Copies after all work of the current stream; later work of that stream waits for the copy. Returns after the last
  /// call of `fill`. \param fill  writes bytes [first, first + count) of the source to `room`
  void to_device(std::byte* to, std::size_t bytes,
                 const std::function<void(std::byte* room, std::size_t first, std::size_t count)>& fill);
  /// Starts a copy after all work of the current stream. Asynchronous if the host memory is page-locked.
  /// \return an event that is reached when the copy is done
  UniqueEvent start(void* to, const void* from, std::size_t bytes);

 private:
  static constexpr std::size_t kSlot_bytes = std::size_t{16} << 20;
  /// 32 MiB of pinned memory and a stream, created at the first copy.
  struct Slots;
  Slots& slots();

  c10::DeviceIndex device_;
  EventWait wait_;
  int exceptions_at_birth_ = std::uncaught_exceptions();
  std::mutex mutex_;
  std::shared_ptr<Slots> slots_;
  std::shared_ptr<UniqueStream> early_;  ///< stream of start()
};

/// Page-locks [address, address + bytes) for the lifetime of the result.
/// \return null if the driver refuses; copies then treat the memory as pageable
std::shared_ptr<void> lock_host_pages(void* address, std::size_t bytes);

/// \return a copy of host tensor x in pinned memory of PyTorch's allocator, which does not reuse the memory before
/// queued reads of the device are done
at::Tensor pinned_copy(const at::Tensor& x);

/// Page-locks host tensor x for the lifetime of the result, which keeps x alive.
/// \return null if the driver refuses; copies then treat the memory as pageable
std::shared_ptr<void> lock_pages_of(const at::Tensor& x);

/// A Transfer that ends with `done` and keeps both tensors alive until wait().
std::unique_ptr<Transfer> transfer_until(UniqueEvent done, const at::Tensor& to, const at::Tensor& from);

}  // namespace fsdp::detail
