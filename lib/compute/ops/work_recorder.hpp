#pragma once
// Work of a device that is asked for once and done often: of a small model the host takes longer to ask for kernels
// than the device to run them.
#include <functional>
#include <memory>

namespace fsdp {

/// Keeps the memory in which it computes, but for what was allocated before it was recorded: that, the caller keeps.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  /// Asks for all of it, behind what was asked for before. With the addresses and numbers of its recording, and what
  /// lies at those addresses when the device gets there.
  virtual void run() = 0;
};

class WorkRecorder {
 public:
  virtual ~WorkRecorder() = default;
  /// Runs body, whose work for the device is written down and not done: it must not wait for the device, read from it
  /// or send to it. All of it must have run before, so that nothing is made for the first time. Tensors that body
  /// leaves behind are filled by each run(). Recordings share their memory: what one leaves there and nobody holds
  /// is the next one's.
  /// \throws what body throws, and RuntimeFailure where the device cannot record it; nothing has been done then
  virtual std::unique_ptr<RecordedWork> record(const std::function<void()>& body) const = 0;
  /// Waits for what was asked for: before memory goes that recordings under way still use.
  virtual void wait() const {}
  /// Gives memory that nothing holds back to the device, whose allocator then cuts it as in a first step.
  virtual void empty_cache() const {}
};

}  // namespace fsdp
