#pragma once
// Inputs of recomputed blocks in host memory between forward and backward (--offload-activations). Copies run beside
// the device's work: to the host while the block computes, and back while the block above it computes its backward.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "lib/compute/ops/ops.hpp"

namespace fsdp {

/// A stack: the backward takes the inputs in the reverse order of the forward.
class HostInputs {
 public:
  /// \param ops  must outlive the object
  explicit HostInputs(const Ops& ops) : ops_(ops) {}

  /// Starts to copy `x` to the host and holds `x` until the copy has ended, at the latest until the next call.
  void keep(const at::Tensor& x);
  /// Starts to copy the input that was kept last back to the device, if there is one and it is not on its way.
  void fetch();
  /// Returns the input that was kept last, on the device, and starts to fetch the one before it.
  at::Tensor take();
  /// Forgets inputs that a micro-batch has left, because it failed.
  void clear();

 private:
  at::Tensor room_for(const at::Tensor& x);
  void finish_keep();

  const Ops& ops_;
  std::vector<at::Tensor> kept_;  ///< on the host
  std::vector<std::pair<at::Tensor, std::shared_ptr<void>>>
      rooms_;  ///< by place in kept_: page-locked memory, its lock
  /// Rooms that were too small. Copies that are queued may still use them.
  std::vector<std::pair<at::Tensor, std::shared_ptr<void>>> outgrown_;
  std::unique_ptr<Transfer> to_host_, to_device_;
  at::Tensor fetched_;  ///< destination of to_device_
};

}  // namespace fsdp
