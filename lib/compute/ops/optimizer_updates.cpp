// Optimizers by ATen's operators, on any device: the reference that the kernels are tested against, and what a device
// without kernels of ours runs.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

#include <optional>

#include "lib/compute/ops/ops.hpp"

namespace fsdp {

void Ops::adamw(const AdamWUpdate& u) const {
  const auto options = u.params.front().options();
  const std::vector<at::Tensor> steps(u.params.size(), at::full({}, static_cast<double>(u.step), options));
  std::optional<at::Tensor> divisor;
  if (u.grad_divisor != 1.0) divisor = at::full({}, u.grad_divisor, options);
  at::_fused_adamw_(u.params, u.grads, u.exp_avg, u.exp_avg_sq, {}, steps, u.lr, u.beta1, u.beta2, u.weight_decay,
                    u.eps, /*amsgrad=*/false, /*maximize=*/false, divisor, std::nullopt);
}

void Ops::sgd(const SgdUpdate& u) const {
  for (std::size_t i = 0; i < u.params.size(); ++i) {
    auto step = u.grads[i].div(u.grad_divisor).add_(u.params[i], u.weight_decay);
    if (!u.momentum_buffer.empty()) {
      const auto& buffer = u.momentum_buffer[i];
      buffer.mul_(u.momentum).add_(step);
      if (u.nesterov) {
        step.add_(buffer, u.momentum);
      } else {
        step.copy_(buffer);
      }
    }
    u.params[i].sub_(step, u.lr);
  }
}

void Ops::lion(const LionUpdate& u) const {
  for (std::size_t i = 0; i < u.params.size(); ++i) {
    const auto grad = u.grads[i].div(u.grad_divisor);
    const auto sign = u.exp_avg[i].mul(u.beta1).add_(grad, 1 - u.beta1).sign_();
    u.params[i].mul_(1 - u.lr * u.weight_decay).sub_(sign, u.lr);
    u.exp_avg[i].mul_(u.beta2).add_(grad, 1 - u.beta2);
  }
}

void Ops::any_precision(const AnyPrecisionUpdate& u) const {
  const auto step_size = u.step_size(), correction = u.denom_correction();
  for (std::size_t i = 0; i < u.params.size(); ++i) {
    const auto grad = u.grads[i].div(u.grad_divisor);
    const auto &momentum = u.exp_avg[i], &variance = u.exp_avg_sq[i];
    // In float32 and rounded after each operation: ATen's own of 16 bits may round a factor such as beta2 first.
    const auto rounded = [](const at::Tensor& x, const at::Tensor& like) {
      return x.to(like.scalar_type()).to(at::kFloat);
    };
    const auto& param = u.params[i];
    auto rest1 = at::full({}, 1 - u.beta1, grad.options());
    if (param.scalar_type() == at::kBFloat16) rest1 = rounded(rest1, momentum);
    const auto m = rounded(rounded(momentum.to(at::kFloat).mul(u.beta1), momentum).addcmul(grad, rest1), momentum);
    momentum.copy_(m);
    const auto v =
        rounded(rounded(variance.to(at::kFloat).mul(u.beta2), variance).addcmul(grad, grad, 1 - u.beta2), variance);
    variance.copy_(v);
    const auto eps = at::full({}, u.eps, v.options()).to(variance.scalar_type()).to(at::kFloat);
    const auto root = rounded(rounded(v.sqrt(), variance).div(correction), variance);
    const auto update = m.div(rounded(root.add(eps), variance)).mul_(-step_size);
    const auto before = rounded(param.to(at::kFloat).mul(1 - u.lr * u.weight_decay), param);
    if (u.compensation.empty()) {
      param.copy_(before.add(update));
      continue;
    }
    const auto& compensation = u.compensation[i];
    const auto wanted = rounded(compensation.to(at::kFloat).add(update), compensation);
    param.copy_(before.add(wanted));
    compensation.copy_(wanted + rounded(before - param.to(at::kFloat), param));
  }
}

}  // namespace fsdp
