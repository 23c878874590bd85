#pragma once
// Where the facts of a rank come from: an interface, so that tests can put hardware in its place that is not there.
#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "lib/bf16/facts.hpp"
#include "lib/bf16/bf16_gemm.hpp"
#include "lib/engine/collectives/device_backend.hpp"
#include "lib/engine/collectives/device_wish.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

class Bf16FactSource {
 public:
  virtual ~Bf16FactSource() = default;
  /// Identity, device, processor, versions; nothing measured. Call it first. \throws UsageError when --device cuda
  /// cannot be had
  virtual RankFacts identify(ProcessGroup& world, ProcessGroup& node, DeviceWish device) = 0;
  virtual GemmFacts measure_gemm(const GemmBudget& budget) = 0;
  /// Where identify() put this rank; CPU before.
  virtual c10::Device device() const = 0;
  /// Null on the CPU.
  virtual DeviceBackend* backend() const = 0;
  /// Last look before the facts are exchanged.
  virtual void finish(RankFacts& facts) = 0;
};

/// The machine as it is.
std::unique_ptr<Bf16FactSource> make_bf16_fact_source();

}  // namespace fsdp
