#pragma once
// Recorded work on the CPU, as a device with graphs has it: while body runs, kernels (emulated_cuda.hpp) and ATen's
// operators are written down with their addresses and numbers, and what writes is not done. Each run() does all of it,
// in that order, with whatever lies at the addresses then. Memory that the body lets go of is filled with NaN
// (integers: 0x7f7f...) where it does, as what others would have put there; so is what is new. Work whose memory from
// before its recording was given back refuses to run.
#include <atomic>
#include <limits>

#include "lib/compute/ops/place.hpp"

namespace fsdp::test {

/// Reading a value on the host ends a recording, as waiting for a device would.
class EmulatedRecorder final : public WorkRecorder {
 public:
  /// \param fails  as a device that records nothing, after so many operators; negative: never
  /// \param first  of the recordings that fail, from 0; those from `end` on do not
  explicit EmulatedRecorder(int fails = -1, int first = 0, int end = std::numeric_limits<int>::max())
      : fails_(fails), first_(first), end_(end) {}
  std::unique_ptr<RecordedWork> record(const std::function<void()>& body) const override;
  /// Calls of record().
  int asked() const { return asked_; }

 private:
  int fails_, first_, end_;
  mutable std::atomic<int> asked_ = 0;
};

/// A device whose memory is full: while this lives, the n-th of this thread's operators that make tensors (from 0),
/// but for those that are recorded or run again, raises what its allocator would.
class FullMemory {
 public:
  explicit FullMemory(int n);
  FullMemory(const FullMemory&) = delete;
  FullMemory& operator=(const FullMemory&) = delete;
  ~FullMemory();
  /// Operators until then; negative: it has come.
  int left() const;
};

}  // namespace fsdp::test
