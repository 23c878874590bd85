#pragma once
// Copies that the host does not wait for.
#include <ATen/core/Tensor.h>

namespace fsdp::detail {

/// to = from. Whoever reads `to` on the host waits for the device first. Between types PyTorch would convert on the
/// device, in room of its own, to spare the host a wait: those are waited for.
inline void early_copy(const at::Tensor& to, const at::Tensor& from) {
  to.copy_(from, /*non_blocking=*/to.scalar_type() == from.scalar_type());
}

}  // namespace fsdp::detail
