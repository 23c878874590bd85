#pragma once
// Copies between the device and memory of the host, on a stream of their own: those of locked pages run beside
// everything else; those of ordinary memory go through two pinned buffers, and while the device reads or writes one,
// the host writes or reads the other.
//
// Pageable memory would go through the driver's own buffer, piece by piece, with the host waiting for each.
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
#include "lib/compute/ops/place.hpp"

namespace fsdp::detail {

/// Any thread; one copy at a time.
class StagedCopies {
 public:
  StagedCopies(c10::DeviceIndex device, EventWait wait) : device_(device), wait_(std::move(wait)) {}
  StagedCopies(const StagedCopies&) = delete;
  StagedCopies& operator=(const StagedCopies&) = delete;
  ~StagedCopies();

  /// Behind all that the current stream was asked for, collectives included. Returns when the bytes are there.
  void to_host(std::byte* to, const std::byte* from, std::size_t bytes);
  /// Likewise; what the current stream is asked for afterwards comes after it. Returns when `fill` has given all bytes.
  /// \param fill  writes bytes [first, first + count) of what is sent to `room`
  void to_device(std::byte* to, std::size_t bytes,
                 const std::function<void(std::byte* room, std::size_t first, std::size_t count)>& fill);
  /// Behind all that the current stream was asked for; of locked pages nobody waits for it.
  /// \return reached when it is done
  UniqueEvent start(void* to, const void* from, std::size_t bytes);

 private:
  static constexpr std::size_t kSlot_bytes = std::size_t{16} << 20;
  /// Made at the first copy: 32 MiB of pinned memory and a stream.
  struct Slots;
  Slots& slots();

  c10::DeviceIndex device_;
  EventWait wait_;
  int exceptions_at_birth_ = std::uncaught_exceptions();
  std::mutex mutex_;
  std::shared_ptr<Slots> slots_;
  std::shared_ptr<UniqueStream> early_;  ///< of start()
};

/// Pages of [address, address + bytes) stay where they are, and the device reaches them, as long as the result lives.
/// \return null where the driver refuses that: copies then go as from any memory
std::shared_ptr<void> lock_host_pages(void* address, std::size_t bytes);

// Tensors of the host that the device reads and writes by itself.

/// A copy of x, on the host, in pinned memory of PyTorch's allocator, which keeps that until what the device was asked
/// to read of it is read.
at::Tensor pinned_copy(const at::Tensor& x);

/// Lets the device reach x, on the host, as long as the result lives.
/// \return null where the driver refuses: copies then go as from any memory
std::shared_ptr<void> lock_pages_of(const at::Tensor& x);

/// A copy under way, which holds both tensors and is over with `done`.
std::unique_ptr<Transfer> transfer_until(UniqueEvent done, const at::Tensor& to, const at::Tensor& from);

}  // namespace fsdp::detail
