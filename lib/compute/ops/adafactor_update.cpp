// Adafactor by ATen's operators; nothing of it waits for the device.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>

#include "lib/compute/ops/ops.hpp"

namespace fsdp {
namespace {

at::Tensor scaled(const AdafactorUpdate& u) { return u.grad.div(u.grad_divisor); }

/// to = (1 - weight) to + weight * values
void average(const at::Tensor& to, const at::Tensor& values, double weight) {
  to.copy_(to.to(at::kDouble).lerp(values.to(at::kDouble), weight));
}

/// The update before clipping, learning rate and momentum.
at::Tensor direction(const AdafactorUpdate& u) {
  const auto grad = scaled(u);
  const double least = u.eps1 * u.eps1;
  if (u.variance.defined()) return grad.div((u.transformers ? u.variance : u.variance.clamp_min(least)).sqrt());
  const auto mean = u.sums.select(0, 1).div(static_cast<double>(u.rows));
  if (u.transformers) {
    const auto rows = u.row_var.to(at::kDouble).div(mean).rsqrt().to(at::kFloat);
    return grad.mul(rows.unsqueeze(1)).mul(u.col_var.rsqrt());
  }
  const auto rows = u.row_var.to(at::kDouble).div(mean.clamp_min(u.eps1)).to(at::kFloat);
  return grad.mul(rows.unsqueeze(1).mul(u.col_var).clamp_min_(least).rsqrt_());
}

/// The root mean square of a parameter of which `sum` is the sum of squares.
at::Tensor root_mean(const AdafactorUpdate& u, const at::Tensor& sum) {
  return sum.div(static_cast<double>(u.elements)).sqrt();
}

}  // namespace

void Ops::adafactor_statistics(const AdafactorUpdate& u) const {
  const auto squares = scaled(u).to(at::kDouble).square_();
  u.sums.select(0, 0).copy_(u.param.to(at::kDouble).square_().sum());
  if (u.variance.defined()) {
    average(u.variance, squares.add(u.square_eps()), u.new_weight);
    return;
  }
  average(u.row_var, squares.mean(1).add_(u.square_eps()), u.new_weight);
  u.sums.select(0, 1).copy_(u.row_var.sum(at::kDouble));
  u.sums.slice(0, 2).copy_(squares.sum(0));
}

void Ops::adafactor_update_size(const AdafactorUpdate& u) const {
  if (!u.variance.defined())
    average(u.col_var, u.sums.slice(0, 2).div(static_cast<double>(u.rows)).add_(u.square_eps()), u.new_weight);
  u.update_sum.copy_(direction(u).to(at::kDouble).square_().sum());
}

void Ops::adafactor_apply(const AdafactorUpdate& u) const {
  auto rate = at::full({}, u.rate, u.sums.options());
  if (u.scale_parameter) rate.mul_(root_mean(u, u.sums.select(0, 0)).clamp_min_(u.eps2));
  auto update = direction(u).mul_(rate.div(root_mean(u, u.update_sum.select(0, 0)).clamp_min_(1.0)));
  if (u.exp_avg.defined()) {
    u.exp_avg.mul_(u.beta1).add_(update, 1 - u.beta1);
    update.copy_(u.exp_avg);
  }
  u.param.mul_(u.weight_decay_factor);
  if (u.relative_decay != 0) u.param.mul_(rate.mul(-u.relative_decay).add_(1.0));
  u.param.sub_(update);
}

}  // namespace fsdp
