#include "lib/compute/cuda/host_tensors.hpp"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <utility>

#include "lib/compute/cuda/staged_copies.hpp"

namespace fsdp::detail {
namespace {

/// Where an exception is on its way, a copy may still wait behind a collective that never ends: the pages stay locked,
/// and the memory there, until the process is gone.
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
  /// Not waited for: an exception is on its way, and memory that is given back now may be given to others.
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
