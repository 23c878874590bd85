// Optimizers on the host: one pass over a parameter, its gradient and its states.
#include "lib/compute/ops/cpu_ops.hpp"
#include "lib/compute/ops/row_loops.hpp"

namespace fsdp {

using namespace detail;

namespace {

/// Elements that are worth a thread.
constexpr std::int64_t kGrain = 32768;

float* floats(const std::vector<at::Tensor>& tensors, std::size_t i) {
  return tensors.empty() ? nullptr : tensors[i].data_ptr<float>();
}

float decay_factor(const UpdateGroup& u) { return static_cast<float>(1 - u.lr * u.weight_decay); }
float grad_scale(const UpdateGroup& u) { return static_cast<float>(1 / u.grad_divisor); }

}  // namespace

void CpuOps::sgd(const SgdUpdate& u) const {
  for (std::size_t i = 0; i < u.params.size(); ++i) {
    const kernels::SgdArgs args{floats(u.params, i),
                                floats(u.grads, i),
                                floats(u.momentum_buffer, i),
                                static_cast<float>(u.lr),
                                static_cast<float>(u.weight_decay),
                                grad_scale(u),
                                static_cast<float>(u.momentum),
                                u.nesterov};
    launch(u.params[i].numel(), kGrain, [&](auto b, auto e) { kernels::table().sgd(args, b, e); });
  }
}

void CpuOps::lion(const LionUpdate& u) const {
  for (std::size_t i = 0; i < u.params.size(); ++i) {
    const kernels::LionArgs args{floats(u.params, i),
                                 floats(u.grads, i),
                                 floats(u.exp_avg, i),
                                 static_cast<float>(u.lr),
                                 decay_factor(u),
                                 grad_scale(u),
                                 static_cast<float>(u.beta1),
                                 static_cast<float>(u.beta2),
                                 static_cast<float>(1 - u.beta1),
                                 static_cast<float>(1 - u.beta2)};
    launch(u.params[i].numel(), kGrain, [&](auto b, auto e) { kernels::table().lion(args, b, e); });
  }
}

void CpuOps::any_precision(const AnyPrecisionUpdate& u) const {
  for (std::size_t i = 0; i < u.params.size(); ++i) {
    const auto &momentum = u.exp_avg[i], &variance = u.exp_avg_sq[i];
    const kernels::AnyPrecisionArgs args{u.params[i].data_ptr(),
                                         floats(u.grads, i),
                                         momentum.data_ptr(),
                                         variance.data_ptr(),
                                         u.compensation.empty() ? nullptr : u.compensation[i].data_ptr(),
                                         decay_factor(u),
                                         grad_scale(u),
                                         static_cast<float>(u.beta1),
                                         static_cast<float>(u.beta2),
                                         static_cast<float>(u.eps),
                                         static_cast<float>(1 - u.beta1),
                                         static_cast<float>(1 - u.beta2),
                                         u.step_size(),
                                         u.denom_correction()};
    launch(u.params[i].numel(), kGrain, [&](auto b, auto e) {
      kernels::table().any_precision(type_of(u.params[i]), type_of(momentum), type_of(variance), args, b, e);
    });
  }
}

}  // namespace fsdp
