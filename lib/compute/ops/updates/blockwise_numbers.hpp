#pragma once
#include "lib/compute/ops/updates/optimizer_updates.hpp"

namespace fsdp::detail {

/// Sets the numbers of an update that kernels of every device read, computed in float64.
/// \tparam Args  kernels::BlockwiseArgs or fused::Blockwise
template <typename Args>
void set_numbers(Args& args, const BlockwiseUpdate& u) {
  args.weight_decay_factor = static_cast<float>(1 - u.lr * u.weight_decay);
  args.beta1 = static_cast<float>(u.beta1);
  args.beta2 = static_cast<float>(u.beta2);
  args.rest1 = static_cast<float>(1 - u.beta1);
  args.rest2 = static_cast<float>(1 - u.beta2);
  args.step_size = static_cast<float>(u.lion ? u.lr : u.step_size() * u.correction());
  args.eps = static_cast<float>(u.eps * u.correction());
}

}  // namespace fsdp::detail
