// Adafactor on the host: three passes over a parameter's gradient. Sums are float64, row by row, so that neither
// threads nor ranks show in float32.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "lib/compute/ops/cpu_ops.hpp"
#include "lib/compute/ops/row_loops.hpp"

namespace fsdp {

using namespace detail;

namespace {

float* floats_or_null(const at::Tensor& x) { return x.defined() ? x.data_ptr<float>() : nullptr; }

/// Anything that is no matrix is one row.
std::int64_t rows_of(const AdafactorUpdate& u) { return u.variance.defined() ? 1 : u.param.size(0); }

/// What does not depend on sums. \param row_sums  float64 [rows]
kernels::AdafactorArgs arguments(const AdafactorUpdate& u, const at::Tensor& row_sums) {
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

/// The mean of row_var, which the columns' means are relative to.
double mean_of_rows(const AdafactorUpdate& u) {
  if (u.variance.defined()) return 1;
  const double mean = u.sums.data_ptr<double>()[1] / static_cast<double>(u.rows);
  return u.transformers ? mean : std::max(mean, u.eps1);
}

double root_of_mean(const AdafactorUpdate& u, double sum) { return std::sqrt(sum / static_cast<double>(u.elements)); }

}  // namespace

void CpuOps::adafactor_statistics(const AdafactorUpdate& u) const {
  const auto rows = rows_of(u);
  const auto row_sums = at::empty({rows}, u.sums.options());
  const auto args = arguments(u, row_sums);
  launch(rows, row_grain(args.columns), [&](auto b, auto e) { kernels::table().adafactor_rows(args, b, e); });
  u.sums.select(0, 0).copy_(row_sums.sum());
  if (u.variance.defined()) return;
  u.sums.select(0, 1).copy_(u.row_var.sum(at::kDouble));
  constexpr std::int64_t kColumnGrain = 256;
  launch(args.columns, kColumnGrain, [&](auto b, auto e) { kernels::table().adafactor_columns(args, rows, b, e); });
}

void CpuOps::adafactor_update_size(const AdafactorUpdate& u) const {
  const auto rows = rows_of(u);
  const auto row_sums = at::empty({rows}, u.sums.options());
  auto args = arguments(u, row_sums);
  if (!u.variance.defined()) {
    const auto scale = 1 / static_cast<double>(u.rows);
    launch(args.columns, args.columns,
           [&](auto b, auto e) { kernels::table().adafactor_column_means(args, scale, b, e); });
  }
  launch(rows, row_grain(args.columns), [&](auto b, auto e) {
    auto mine = args;
    mine.row_scale = static_cast<float>(1 / mean_of_rows(u));
    kernels::table().adafactor_sizes(mine, b, e);
  });
  u.update_sum.copy_(row_sums.sum());
}

void CpuOps::adafactor_apply(const AdafactorUpdate& u) const {
  const auto args = arguments(u, u.sums);
  launch(rows_of(u), row_grain(args.columns), [&](auto b, auto e) {
    auto mine = args;
    const double size = u.scale_parameter ? std::max(u.eps2, root_of_mean(u, u.sums.data_ptr<double>()[0])) : 1.0;
    const double rate = u.rate * size;
    mine.row_scale = static_cast<float>(1 / mean_of_rows(u));
    mine.rate = static_cast<float>(rate / std::max(1.0, root_of_mean(u, *u.update_sum.data_ptr<double>())));
    mine.weight_decay_factor = static_cast<float>(u.weight_decay_factor * (1 - rate * u.relative_decay));
    kernels::table().adafactor_apply(mine, b, e);
  });
}

}  // namespace fsdp
