#pragma once
// Recorded work on the CPU, like the graphs of a device. While the body runs, kernels (emulated_cuda.hpp) and ATen's
// operators are recorded with their addresses and scalar arguments, and nothing is written. Each run() executes all of
// them in order on the memory at these addresses. Memory that the body frees is filled with NaN (integers: 0x7f7f...)
// at that point, as if another owner had overwritten it; new memory is filled, too. run() throws when memory that
// existed before the recording has been freed.
#include <atomic>
#include <limits>

#include "lib/compute/ops/device_work.hpp"

namespace fsdp::test {

/// Reading a value on the host aborts a recording, as waiting for a device would.
class EmulatedRecorder final : public WorkRecorder {
 public:
  /// \param fails  recordings fail after this many operators; negative: they never fail
  /// \param first  index of the first recording that fails, from 0; recordings from `end` on succeed
  explicit EmulatedRecorder(int fails = -1, int first = 0, int end = std::numeric_limits<int>::max())
      : fails_(fails), first_(first), end_(end) {}
  std::unique_ptr<RecordedWork> record(const std::function<void()>& body) const override;
  /// Returns the number of calls of record().
  int asked() const { return asked_; }

 private:
  int fails_, first_, end_;
  mutable std::atomic<int> asked_ = 0;
};

}  // namespace fsdp::test
