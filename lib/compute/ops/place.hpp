#pragma once
// The device of an Ops: where tensors live, how they are transferred, and how its work is captured and replayed.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace fsdp {

/// An asynchronous copy.
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// Orders later work of the device after the copy. The host does not wait.
  virtual void wait() = 0;
};

class WorkRecorder;

class Place {
 public:
  virtual ~Place() = default;
  virtual at::Device device() const = 0;
  /// True if tensors of the device are in host memory, which ranks of a node can share.
  virtual bool on_host() const = 0;
  /// Device of host tensors: at::kCPU, or at::kMeta in a prediction.
  virtual at::Device host() const;
  virtual bool is_on_host(const at::Tensor& x) const;
  /// x on the device; x itself if it is there already.
  virtual at::Tensor to_device(const at::Tensor& x) const;
  /// x on the host; x itself if it is there already. Waits until x is computed, but not for work that is queued later.
  /// \throws RuntimeFailure when x depends on a collective whose rank is gone
  virtual at::Tensor to_host(const at::Tensor& x) const;
  /// to = from: contiguous tensors of one dtype, one of them on the device. The host may reuse both on return.
  /// \throws RuntimeFailure as to_host()
  virtual void transfer(const at::Tensor& to, const at::Tensor& from) const;
  /// Starts the same copy on a stream of its own, for host memory that lock_pages() has locked. The copy starts after
  /// the work that is queued now; neither host nor device waits for it until Transfer::wait(), and neither tensor may
  /// be changed before. \return null if the copy is already done
  virtual std::unique_ptr<Transfer> start_transfer(const at::Tensor& to, const at::Tensor& from) const;
  /// Page-locks host tensor x, so that the device can access it, until the result is destroyed; null: not possible.
  virtual std::shared_ptr<void> lock_pages(const at::Tensor& x) const;
  /// A tensor over host memory that the caller owns.
  virtual at::Tensor tensor_at(void* data, at::IntArrayRef sizes, at::ScalarType dtype) const;
  /// Captures work for replay; null if the device cannot.
  virtual const WorkRecorder* recorder() const { return nullptr; }
  /// Counts host memory that ATen does not allocate (a shared-memory segment); negative when it is freed.
  virtual void count_window(std::int64_t bytes) const;
  /// Runs body(0), ..., body(n - 1). Each call frees what it allocates, so a prediction may skip calls that are alike.
  virtual void repeat(std::int64_t n, const std::function<void(std::int64_t)>& body) const;
};

/// Captured device work that can be replayed, as a CUDA graph: a small model's kernels run faster than the host can
/// launch them one by one. Owns the memory that was allocated during the capture; the caller keeps what was allocated
/// before.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  /// Queues a replay after the work queued so far. The replay uses the addresses and scalars of the capture, and reads
  /// what those addresses hold when the device gets there.
  virtual void run() = 0;
};

class WorkRecorder {
 public:
  virtual ~WorkRecorder() = default;
  /// Captures the device work of `body` without running it. `body` must not synchronize with the device or copy between
  /// host and device, and must have run once before, so that nothing is initialised lazily. Each run() fills the
  /// tensors that `body` leaves. Captures share one memory pool: a later capture reuses memory that no tensor holds.
  /// \throws what `body` throws, or RuntimeFailure if the device cannot capture the work; nothing has run then
  virtual std::unique_ptr<RecordedWork> record(const std::function<void()>& body) const = 0;
  /// Waits for the queued work, before memory is freed that a replay still uses.
  virtual void wait() const {}
  /// Returns cached free memory to the device, so that the allocator splits it as in a first step.
  virtual void empty_cache() const {}
};

}  // namespace fsdp
