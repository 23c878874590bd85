#pragma once
// Recorded work on the CPU, as a device with graphs has it: while body runs, kernels (emulated_cuda.hpp) and ATen's
// operators are written down with their addresses and numbers, and what writes is not done. Each run() does all of it,
// in that order, with whatever lies at the addresses then. Memory that the body lets go of is filled with NaN
// (integers: 0x7f7f...) where it does, as what others would have put there; so is what is new. Work whose memory from
// before its recording was given back refuses to run.
#include "lib/ops/work_recorder.hpp"

namespace fsdp::test {

/// Reading a value on the host ends a recording, as waiting for a device would.
class EmulatedRecorder final : public WorkRecorder {
 public:
  /// \param fails  as a device that records nothing, after so many operators; negative: never
  explicit EmulatedRecorder(int fails = -1) : fails_(fails) {}
  std::unique_ptr<RecordedWork> record(const std::function<void()>& body) const override;

 private:
  int fails_;
};

}  // namespace fsdp::test
