#pragma once
// The source of a rank's facts: an interface, so that tests can simulate hardware.
#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "lib/bf16/bf16_gemm.hpp"
#include "lib/bf16/facts.hpp"
#include "lib/engine/collectives/device_backend.hpp"
#include "lib/engine/collectives/requested_device.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

class Bf16FactSource {
 public:
  virtual ~Bf16FactSource() = default;
  /// Determines identity, device, processor and versions without measuring. Call it before the other functions. \throws
  /// RequestError when --device cuda is not available
  virtual RankFacts identify(ProcessGroup& world, ProcessGroup& node, RequestedDevice device) = 0;
  virtual GemmFacts measure_gemm(const GemmBudget& budget) = 0;
  /// The device that identify() chose for this rank; the CPU before identify().
  virtual c10::Device device() const = 0;
  /// \return null on the CPU
  virtual DeviceBackend* backend() const = 0;
  /// Completes the facts after all measurements, before the ranks exchange them.
  virtual void finish(RankFacts& facts) = 0;
};

/// Reports and measures the real machine.
std::unique_ptr<Bf16FactSource> make_bf16_fact_source();

}  // namespace fsdp
