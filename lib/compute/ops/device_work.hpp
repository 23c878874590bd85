#pragma once
// Work of a device that goes on while the host does something else: copies, work that is captured and replayed, and
// when the device does it.
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

/// A point in a device's work. The device notes the time when it gets there.
class TimeMark {
 public:
  virtual ~TimeMark() = default;
  /// Seconds of the device from `earlier`, a mark of the same device. \pre the device has reached both
  virtual double seconds_since(const TimeMark& earlier) const = 0;
};

class WorkRecorder {
 public:
  virtual ~WorkRecorder() = default;
  /// Captures the device work of `body` without running it. `body` must not synchronize with the device or copy between
  /// host and device, and must have run once before, so that nothing is initialised lazily. Each run() fills the
  /// tensors that `body` leaves. Captures share one memory pool: a later capture reuses memory that no tensor holds.
  /// \throws what `body` throws, or RuntimeFailure if the device cannot capture the work; nothing has run then
  virtual std::unique_ptr<RecordedWork> record(const std::function<void()>& body) const = 0;
};

}  // namespace fsdp
