// Adafactor: three passes over the gradient. On the CPU, sums are float64 and by row, so that float32 results do not
// depend on the number of threads or ranks; on a device, no operation waits for the device.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>

#include "lib/compute/ops/ops.hpp"
#include "lib/compute/ops/row_loops.hpp"

namespace fsdp {

using namespace detail;

namespace {

/// A parameter that is not a matrix is one row.
std::int64_t rows_of(const AdafactorUpdate& u) { return u.variance.defined() ? 1 : u.param.size(0); }

/// Arguments that do not depend on sums over ranks. \param row_sums  float64 [rows]
kernels::AdafactorArgs kernel_arguments(const AdafactorUpdate& u, const at::Tensor& row_sums) {
  kernels::AdafactorArgs a;
  a.param = u.param.data_ptr<float>();
  a.grad = u.grad.data_ptr<float>();
  a.row_var = floats_or_null(u.row_var);
  a.col_var = floats_or_null(u.col_var);
  a.variance = floats_or_null(u.variance);
  a.exp_avg = floats_or_null(u.exp_avg);
  a.row_sums = row_sums.data_ptr<double>();
  a.column_sums = u.variance.defined() ? nullptr : u.sums.data_ptr<double>() + 2;
  a.columns = u.variance.defined() ? u.param.numel() : u.param.size(1);
  a.grad_scale = static_cast<float>(1 / u.grad_divisor);
  a.new_weight = u.new_weight;
  a.square_eps = u.square_eps();
  a.least_variance = u.transformers ? 0.0f : static_cast<float>(u.eps1 * u.eps1);
  a.separate_roots = u.transformers;
  a.beta1 = static_cast<float>(u.beta1);
  a.rest1 = static_cast<float>(1 - u.beta1);
  return a;
}

/// The mean of row_var over the whole parameter.
double mean_of_rows(const AdafactorUpdate& u) {
  if (u.variance.defined()) return 1;
  const double mean = u.sums.data_ptr<double>()[1] / static_cast<double>(u.rows);
  return u.transformers ? mean : std::max(mean, u.eps1);
}

double root_of_mean(const AdafactorUpdate& u, double sum) { return std::sqrt(sum / static_cast<double>(u.elements)); }

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

/// Root mean square of a parameter whose sum of squares is `sum`.
at::Tensor root_mean(const AdafactorUpdate& u, const at::Tensor& sum) {
  return sum.div(static_cast<double>(u.elements)).sqrt();
}

}  // namespace

void Ops::adafactor_statistics(const AdafactorUpdate& u) const {
  const auto counted = work_.pass(bytes_of({&u.grad, &u.param}), is_on_host(u.param));
  if (cpu_ != nullptr) {
    const auto rows = rows_of(u);
    const auto row_sums = at::empty({rows}, u.sums.options());
    const auto args = kernel_arguments(u, row_sums);
    launch(rows, row_grain(args.columns), [&](auto b, auto e) { cpu_->adafactor_rows(args, b, e); });
    u.sums.select(0, 0).copy_(row_sums.sum());
    if (u.variance.defined()) return;
    u.sums.select(0, 1).copy_(u.row_var.sum(at::kDouble));
    constexpr std::int64_t kColumnGrain = 256;
    launch(args.columns, kColumnGrain, [&](auto b, auto e) { cpu_->adafactor_columns(args, rows, b, e); });
    return;
  }
  if (is_offloaded(u.param)) {
    if (!work_.counts()) host_ops().adafactor_statistics(u);
    return;
  }
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
  const auto counted = work_.pass(bytes_of({&u.grad}), is_on_host(u.param));
  if (cpu_ != nullptr) {
    const auto rows = rows_of(u);
    const auto row_sums = at::empty({rows}, u.sums.options());
    auto args = kernel_arguments(u, row_sums);
    if (!u.variance.defined()) {
      const auto scale = 1 / static_cast<double>(u.rows);
      launch(args.columns, args.columns, [&](auto b, auto e) { cpu_->adafactor_column_means(args, scale, b, e); });
    }
    launch(rows, row_grain(args.columns), [&](auto b, auto e) {
      auto unit_args = args;
      unit_args.row_scale = static_cast<float>(1 / mean_of_rows(u));
      cpu_->adafactor_sizes(unit_args, b, e);
    });
    u.update_sum.copy_(row_sums.sum());
    return;
  }
  if (is_offloaded(u.param)) {
    if (!work_.counts()) host_ops().adafactor_update_size(u);
    return;
  }
  if (!u.variance.defined())
    average(u.col_var, u.sums.slice(0, 2).div(static_cast<double>(u.rows)).add_(u.square_eps()), u.new_weight);
  u.update_sum.copy_(direction(u).to(at::kDouble).square_().sum());
}

void Ops::adafactor_apply(const AdafactorUpdate& u) const {
  const auto counted = work_.pass(bytes_of({&u.grad, &u.param, &u.param}), is_on_host(u.param));
  if (cpu_ != nullptr) {
    const auto args = kernel_arguments(u, u.sums);
    launch(rows_of(u), row_grain(args.columns), [&](auto b, auto e) {
      auto unit_args = args;
      const double size = u.scale_parameter ? std::max(u.eps2, root_of_mean(u, u.sums.data_ptr<double>()[0])) : 1.0;
      const double rate = u.rate * size;
      unit_args.row_scale = static_cast<float>(1 / mean_of_rows(u));
      unit_args.rate = static_cast<float>(rate / std::max(1.0, root_of_mean(u, *u.update_sum.data_ptr<double>())));
      unit_args.weight_decay_factor = static_cast<float>(u.weight_decay_factor * (1 - rate * u.relative_decay));
      cpu_->adafactor_apply(unit_args, b, e);
    });
    return;
  }
  if (is_offloaded(u.param)) {
    if (!work_.counts()) host_ops().adafactor_apply(u);
    return;
  }
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
