// Optimizer updates: offloaded tensors by the host's kernels, others by plain operators.
#include "lib/compute/ops/aten_ops.hpp"

namespace fsdp {

const Ops* AtenOps::host_updater(const at::Tensor& x) const {
  return is_on_host(x) && !device().is_cpu() ? &host_ops() : nullptr;
}

void AtenOps::update(const ElementwiseUpdate& u) const {
  const auto* host = host_updater(u.params.front());
  host != nullptr ? host->update(u) : Ops::update(u);
}

void AtenOps::blockwise(const BlockwiseUpdate& u) const {
  const auto* host = host_updater(u.param);
  host != nullptr ? host->blockwise(u) : Ops::blockwise(u);
}

void AtenOps::blockwise_edges(const BlockwiseUpdate& u, const at::Tensor& largest) const {
  const auto* host = host_updater(u.param);
  host != nullptr ? host->blockwise_edges(u, largest) : Ops::blockwise_edges(u, largest);
}

void AtenOps::adafactor_statistics(const AdafactorUpdate& u) const {
  const auto* host = host_updater(u.param);
  host != nullptr ? host->adafactor_statistics(u) : Ops::adafactor_statistics(u);
}

void AtenOps::adafactor_update_size(const AdafactorUpdate& u) const {
  const auto* host = host_updater(u.param);
  host != nullptr ? host->adafactor_update_size(u) : Ops::adafactor_update_size(u);
}

void AtenOps::adafactor_apply(const AdafactorUpdate& u) const {
  const auto* host = host_updater(u.param);
  host != nullptr ? host->adafactor_apply(u) : Ops::adafactor_apply(u);
}

}  // namespace fsdp
