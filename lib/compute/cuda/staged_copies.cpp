#include "lib/compute/cuda/staged_copies.hpp"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

namespace fsdp::detail {

struct StagedCopies::Slots {
  struct Free {
    void operator()(void* memory) const { static_cast<void>(cudaFreeHost(memory)); }
  };
  struct Slot {
    std::unique_ptr<void, Free> memory;
    UniqueEvent done;  ///< reached when the device has finished with the buffer
    std::byte* data() const { return static_cast<std::byte*>(memory.get()); }
  };
  std::array<Slot, 2> both;
  std::size_t turn = 0;  ///< counts over calls, so that small tensors alternate between buffers too
  UniqueEvent here;
  UniqueStream stream;
};

StagedCopies::Slots& StagedCopies::slots() {
  if (slots_ != nullptr) return *slots_;
  auto made = std::make_shared<Slots>();
  for (auto& slot : made->both) {
    void* memory = nullptr;
    check_cuda(cudaHostAlloc(&memory, kSlot_bytes, cudaHostAllocDefault), "cudaHostAlloc");
    slot.memory.reset(memory);
  }
  slots_ = std::move(made);
  return *slots_;
}

/// During stack unwinding, a copy may be queued behind a collective that never ends, and freeing the buffers would wait
/// for the copy. The buffers are leaked in this case.
StagedCopies::~StagedCopies() {
  if (slots_ != nullptr && std::uncaught_exceptions() > exceptions_at_birth_)
    static_cast<void>(new std::shared_ptr<Slots>(std::move(slots_)));
}

void StagedCopies::to_host(std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  const c10::cuda::CUDAGuard guard(device_);
  auto& all = slots();
  all.here.record(c10::cuda::getCurrentCUDAStream(device_).stream());
  all.here.make_wait(all.stream.get());
  const auto size_at = [&](std::size_t first) { return std::min(kSlot_bytes, bytes - first); };
  const auto slot_at = [&, turn = all.turn](std::size_t first) -> const Slots::Slot& {
    return all.both[(turn + first / kSlot_bytes) % 2];
  };
  all.turn += (bytes + kSlot_bytes - 1) / kSlot_bytes;
  const auto start = [&](std::size_t first) {
    const auto& slot = slot_at(first);
    check_cuda(cudaMemcpyAsync(slot.data(), from + first, size_at(first), cudaMemcpyDeviceToHost, all.stream.get()),
               "cudaMemcpyAsync");
    slot.done.record(all.stream.get());
  };
  if (bytes > 0) start(0);
  for (std::size_t first = 0; first < bytes; first += kSlot_bytes) {
    if (first + kSlot_bytes < bytes) start(first + kSlot_bytes);
    const auto& slot = slot_at(first);
    wait_(slot.done);
    std::memcpy(to + first, slot.data(), size_at(first));
  }
}

void StagedCopies::to_device(std::byte* to, std::size_t bytes,
                             const std::function<void(std::byte*, std::size_t, std::size_t)>& fill) {
  const std::scoped_lock lock(mutex_);
  const c10::cuda::CUDAGuard guard(device_);
  auto& all = slots();
  const auto current = c10::cuda::getCurrentCUDAStream(device_).stream();
  all.here.record(current);
  all.here.make_wait(all.stream.get());
  for (std::size_t first = 0; first < bytes; first += kSlot_bytes) {
    const auto& slot = all.both[all.turn++ % 2];
    wait_(slot.done);  // also waits for transfers of earlier calls
    const auto count = std::min(kSlot_bytes, bytes - first);
    fill(slot.data(), first, count);
    check_cuda(cudaMemcpyAsync(to + first, slot.data(), count, cudaMemcpyHostToDevice, all.stream.get()),
               "cudaMemcpyAsync");
    slot.done.record(all.stream.get());
  }
  all.here.record(all.stream.get());
  all.here.make_wait(current);
}

UniqueEvent StagedCopies::start(void* to, const void* from, std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  const c10::cuda::CUDAGuard guard(device_);
  if (early_ == nullptr) early_ = std::make_shared<UniqueStream>();
  UniqueEvent here, done;
  here.record(c10::cuda::getCurrentCUDAStream(device_).stream());
  here.make_wait(early_->get());
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, early_->get()), "cudaMemcpyAsync");
  done.record(early_->get());
  return done;
}

std::shared_ptr<void> lock_host_pages(void* address, std::size_t bytes) {
  if (bytes == 0 || cudaHostRegister(address, bytes, cudaHostRegisterPortable) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // clears the error, so that no later call reports it
    return nullptr;
  }
  return {address, [](void* locked) { static_cast<void>(cudaHostUnregister(locked)); }};
}

namespace {

/// Keeps pages locked. During stack unwinding, a copy may be queued behind a collective that never ends: the pages then
/// stay locked and allocated until the process ends.
class LockedPages {
 public:
  LockedPages(at::Tensor x, std::shared_ptr<void> lock) : kept_(new Kept{std::move(x), std::move(lock)}) {}
  LockedPages(const LockedPages&) = delete;
  LockedPages& operator=(const LockedPages&) = delete;
  ~LockedPages() {
    if (std::uncaught_exceptions() > exceptions_at_birth_) static_cast<void>(kept_.release());
  }

 private:
  struct Kept {
    at::Tensor x;
    std::shared_ptr<void> lock;
  };
  std::unique_ptr<Kept> kept_;
  int exceptions_at_birth_ = std::uncaught_exceptions();
};

class CudaTransfer final : public Transfer {
 public:
  CudaTransfer(UniqueEvent done, at::Tensor to, at::Tensor from)
      : done_(std::move(done)), to_(std::move(to)), from_(std::move(from)) {}
  CudaTransfer(const CudaTransfer&) = delete;
  CudaTransfer& operator=(const CudaTransfer&) = delete;
  /// Called without wait() only during stack unwinding. The stream waits, since the memory is freed and may be reused.
  ~CudaTransfer() override {
    if (to_.defined()) static_cast<void>(cudaStreamWaitEvent(current().stream(), done_.get(), 0));
  }
  void wait() override {
    done_.make_wait(current().stream());
    to_.reset();
    from_.reset();
  }

 private:
  c10::cuda::CUDAStream current() const {
    return c10::cuda::getCurrentCUDAStream(to_.is_cuda() ? to_.get_device() : from_.get_device());
  }

  UniqueEvent done_;
  at::Tensor to_, from_;
};

}  // namespace

at::Tensor pinned_copy(const at::Tensor& x) { return at::empty(x.sizes(), x.options().pinned_memory(true)).copy_(x); }

std::shared_ptr<void> lock_pages_of(const at::Tensor& x) {
  auto lock = lock_host_pages(x.mutable_data_ptr(), x.nbytes());
  return lock == nullptr ? nullptr : std::make_shared<LockedPages>(x, std::move(lock));
}

std::unique_ptr<Transfer> transfer_until(UniqueEvent done, const at::Tensor& to, const at::Tensor& from) {
  return std::make_unique<CudaTransfer>(std::move(done), to, from);
}

}  // namespace fsdp::detail
