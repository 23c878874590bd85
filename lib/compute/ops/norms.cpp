// Norms of rows, with the sum of a residual branch before them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include <array>

#include "lib/compute/ops/fused_args.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/compute/ops/row_loops.hpp"

namespace fsdp {

using namespace detail;

namespace {

at::Tensor wide_gamma(const at::Tensor& gamma_D, double offset) {
  auto gamma = gamma_D.to(at::kFloat);
  return offset == 0 ? gamma : gamma + offset;
}

at::Tensor residual_sum(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D) {
  if (!y_ND.defined()) return x_ND;
  return y_bias_D.defined() ? x_ND + (y_ND + y_bias_D) : x_ND + y_ND;
}

/// Allocates the results of a norm by kernels.
NormResult norm_result(const at::Tensor& x_ND, const at::Tensor& y_ND, const RmsNorm& kind, bool with_mean) {
  const auto statistics = x_ND.options().dtype(at::kFloat);
  NormResult result;
  result.eps = kind.eps;
  result.offset = kind.offset;
  result.sum_ND = y_ND.defined() ? at::empty_like(x_ND) : x_ND;
  result.out_ND = at::empty_like(x_ND);
  if (with_mean) result.mean_N = at::empty({x_ND.size(0)}, statistics);
  result.rstd_N = at::empty({x_ND.size(0)}, statistics);
  return result;
}

/// Both norms: beta_D is undefined for RMSNorm.
NormResult fused_norm(const fused::Kernels& kernels, const at::Tensor& x_ND, const at::Tensor& y_ND,
                      const at::Tensor& y_bias_D, const at::Tensor& gamma_D, const at::Tensor& beta_D,
                      const RmsNorm& kind) {
  const auto dim = x_ND.size(1);
  auto result = norm_result(x_ND, y_ND, kind, beta_D.defined());
  fused::Norm pass{};
  pass.type = kernel_type(x_ND);
  if (y_ND.defined()) pass.sum_ND = address_in(result.sum_ND);
  pass.out_ND = address_in(result.out_ND);
  pass.mean_N = floats_in(result.mean_N);
  pass.rstd_N = floats_in(result.rstd_N);
  pass.x_ND = address_of(x_ND);
  pass.y_ND = address_of(y_ND);
  pass.y_bias_D = address_of(y_bias_D);
  pass.gamma_D = address_of(gamma_D);
  pass.beta_D = address_of(beta_D);
  pass.eps = static_cast<float>(kind.eps);
  pass.offset = static_cast<float>(kind.offset);
  pass.packed =
      are_packed(dim, {pass.sum_ND, pass.out_ND, pass.x_ND, pass.y_ND, pass.y_bias_D, pass.gamma_D, pass.beta_D});
  pass.dim = static_cast<int>(dim);
  pass.rows = x_ND.size(0);
  kernels.norm(pass);
  return result;
}

at::Tensor fused_norm_backward(const fused::Kernels& kernels, const NormBackward& norm, const NormGrads& grads,
                               const NormAgain* again) {
  const auto& x_ND = norm.x_ND;
  const auto n = x_ND.size(0), dim = x_ND.size(1);
  const bool layer_norm = norm.saved.mean_N.defined();
  const int targets = layer_norm ? 3 : 1;
  auto dx_ND = at::empty_like(x_ND);
  if (again != nullptr) again->out_ND = at::empty_like(x_ND);
  const auto partial = at::empty({fused::norm_blocks(n), targets, dim}, x_ND.options().dtype(at::kFloat));
  fused::NormBackwardPass pass{};
  pass.type = kernel_type(x_ND);
  pass.dx_ND = address_in(dx_ND);
  if (again != nullptr) {
    pass.again_ND = address_in(again->out_ND);
    pass.beta_D = address_of(again->beta_D);
  }
  pass.grad_ND = address_of(norm.grad_ND);
  pass.residual_ND = address_of(norm.residual_ND);
  pass.x_ND = address_of(x_ND);
  pass.gamma_D = address_of(norm.gamma_D);
  pass.mean_N = floats_of(norm.saved.mean_N);
  pass.rstd_N = floats_of(norm.saved.rstd_N);
  pass.partial = floats_in(partial);
  pass.offset = static_cast<float>(norm.saved.offset);
  pass.packed = are_packed(dim, {pass.dx_ND, pass.again_ND, pass.beta_D, pass.grad_ND, pass.residual_ND, pass.x_ND,
                                 pass.gamma_D, pass.partial});
  pass.dim = static_cast<int>(dim);
  pass.rows = n;
  kernels.norm_backward(pass);
  const fused::ColumnSums sums{pass.partial,
                               fused::norm_blocks(n),
                               targets,
                               pass.dim,
                               {target_of(grads.gamma), target_of(grads.beta), target_of(grads.y_bias)}};
  kernels.column_sums(sums);
  return dx_ND;
}

}  // namespace

at::Tensor Ops::plain_layer_norm(const at::Tensor& x_ND, const at::Tensor& gamma_D, const at::Tensor& beta_D,
                                 NormResult& stats) const {
  auto [out, mean, rstd] = at::native_layer_norm(x_ND, {x_ND.size(1)}, gamma_D, beta_D, stats.eps);
  stats.mean_N = mean.reshape({x_ND.size(0)}).to(at::kFloat);
  stats.rstd_N = rstd.reshape({x_ND.size(0)}).to(at::kFloat);
  return out;
}

NormResult Ops::add_layer_norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D,
                               const at::Tensor& gamma_D, const at::Tensor& beta_D, double eps) const {
  const auto pass = work_.rows(1, {&x_ND, &x_ND, &y_ND, &y_ND});
  if (cpu_ != nullptr) {
    const auto n = x_ND.size(0), dim = x_ND.size(1);
    auto result = norm_result(x_ND, y_ND, eps, true);
    const kernels::NormArgs args{result.sum_ND.data_ptr(),
                                 result.out_ND.data_ptr(),
                                 result.mean_N.data_ptr<float>(),
                                 result.rstd_N.data_ptr<float>(),
                                 x_ND.const_data_ptr(),
                                 data_or_null(y_ND),
                                 data_or_null(y_bias_D),
                                 gamma_D.const_data_ptr(),
                                 beta_D.const_data_ptr(),
                                 eps,
                                 dim};
    launch(n, row_grain(dim), [&](auto b, auto e) { cpu_->layer_norm(kernel_type(x_ND), args, b, e); });
    return result;
  }
  if (const auto* fused = fused_for({&x_ND, &y_ND, &y_bias_D, &gamma_D, &beta_D}))
    return fused_norm(*fused, x_ND, y_ND, y_bias_D, gamma_D, beta_D, eps);
  NormResult result;
  result.eps = eps;
  result.sum_ND = residual_sum(x_ND, y_ND, y_bias_D);
  result.out_ND = plain_layer_norm(result.sum_ND, gamma_D, beta_D, result);
  return result;
}

NormResult Ops::add_rms_norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D,
                             const at::Tensor& gamma_D, const RmsNorm& kind) const {
  const auto pass = work_.rows(1, {&x_ND, &x_ND, &y_ND, &y_ND});
  const auto n = x_ND.size(0), dim = x_ND.size(1);
  if (cpu_ != nullptr) {
    auto result = norm_result(x_ND, y_ND, kind, false);
    const kernels::RmsNormArgs args{result.sum_ND.data_ptr(),
                                    result.out_ND.data_ptr(),
                                    result.rstd_N.data_ptr<float>(),
                                    x_ND.const_data_ptr(),
                                    data_or_null(y_ND),
                                    data_or_null(y_bias_D),
                                    gamma_D.const_data_ptr(),
                                    kind.eps,
                                    static_cast<float>(kind.offset),
                                    dim};
    launch(n, row_grain(dim), [&](auto b, auto e) { cpu_->rms_norm(kernel_type(x_ND), args, b, e); });
    return result;
  }
  if (const auto* fused = fused_for({&x_ND, &y_ND, &y_bias_D, &gamma_D}))
    return fused_norm(*fused, x_ND, y_ND, y_bias_D, gamma_D, {}, kind);
  NormResult result;
  result.eps = kind.eps;
  result.offset = kind.offset;
  result.sum_ND = residual_sum(x_ND, y_ND, y_bias_D);
  result.out_ND = at::empty_like(x_ND);
  result.rstd_N = at::empty({n}, x_ND.options().dtype(at::kFloat));
  const auto gamma = wide_gamma(gamma_D, kind.offset);
  for_row_pieces(*this, n, dim, [&](std::int64_t first, std::int64_t rows) {
    const auto wide = result.sum_ND.narrow(0, first, rows).to(at::kFloat);
    const auto rstd = wide.square().mean(at::IntArrayRef{1}, true).add_(kind.eps).rsqrt_();
    result.rstd_N.narrow(0, first, rows).copy_(rstd.reshape({rows}));
    result.out_ND.narrow(0, first, rows).copy_(wide * rstd * gamma);
  });
  return result;
}

std::array<at::Tensor, 3> Ops::plain_layer_norm_grads(const NormBackward& norm) const {
  const auto& x_ND = norm.x_ND;
  const auto statistics = [&](const at::Tensor& s) {
    // ATen keeps the statistics of reduced-precision CPU inputs in the input's own type.
    return s.reshape({x_ND.size(0), 1}).to(x_ND.device().is_cpu() ? x_ND.scalar_type() : at::kFloat);
  };
  auto [dx, dgamma, dbeta] =
      at::native_layer_norm_backward(norm.grad_ND, x_ND, {x_ND.size(1)}, statistics(norm.saved.mean_N),
                                     statistics(norm.saved.rstd_N), norm.gamma_D, norm.gamma_D, {true, true, true});
  return {dx, dgamma, dbeta};
}

at::Tensor Ops::layer_norm_backward(const NormBackward& norm, const NormGrads& grads, const NormAgain* again) const {
  const auto pass =
      work_.pass((again != nullptr ? 4 : 3) * work_.bytes({&norm.grad_ND}) + work_.bytes({&norm.residual_ND}));
  const auto& x_ND = norm.x_ND;
  if (cpu_ != nullptr) {
    const auto dim = x_ND.size(1);
    auto out_ND = at::empty_like(x_ND);
    auto grad_gamma = zero_sums(x_ND), grad_beta = zero_sums(x_ND);
    at::Tensor grad_y_bias;
    if (grads.y_bias != nullptr) grad_y_bias = zero_sums(x_ND);
    kernels::NormBackwardArgs args{out_ND.data_ptr(),
                                   norm.grad_ND.const_data_ptr(),
                                   data_or_null(norm.residual_ND),
                                   x_ND.const_data_ptr(),
                                   norm.saved.mean_N.const_data_ptr<float>(),
                                   norm.saved.rstd_N.const_data_ptr<float>(),
                                   norm.gamma_D.const_data_ptr(),
                                   nullptr,
                                   nullptr,
                                   nullptr,
                                   dim,
                                   nullptr,
                                   nullptr};
    if (again != nullptr) {
      again->out_ND = at::empty_like(x_ND);
      args.recomputed_TD = again->out_ND.data_ptr();
      args.beta_D = again->beta_D.const_data_ptr();
    }
    const std::array columns{floats_or_null(grad_gamma), floats_or_null(grad_beta), floats_or_null(grad_y_bias)};
    launch_with_columns(*this, x_ND.size(0), columns, dim,
                        [&](std::int64_t b, std::int64_t e, const auto& chunk_columns) {
                          auto part = args;
                          part.grad_gamma_D = chunk_columns[0];
                          part.grad_beta_D = chunk_columns[1];
                          part.sum_grad_x_D = chunk_columns[2];
                          cpu_->layer_norm_backward(kernel_type(x_ND), part, b, e);
                        });
    accumulate(grads.gamma, grad_gamma);
    accumulate(grads.beta, grad_beta);
    if (grads.y_bias != nullptr) accumulate(grads.y_bias, grad_y_bias);
    return out_ND;
  }
  if (const auto* fused = fused_for({&x_ND, &norm.grad_ND, &norm.residual_ND, &norm.gamma_D}))
    return fused_norm_backward(*fused, norm, grads, again);
  auto [dx, dgamma, dbeta] = plain_layer_norm_grads(norm);
  if (again != nullptr) {
    NormResult unused;
    unused.eps = norm.saved.eps;
    again->out_ND = plain_layer_norm(x_ND, norm.gamma_D, again->beta_D, unused);
  }
  accumulate(grads.gamma, dgamma);
  accumulate(grads.beta, dbeta);
  if (norm.residual_ND.defined()) dx.add_(norm.residual_ND);
  bias_grad(grads.y_bias, dx);
  return dx;
}

at::Tensor Ops::rms_norm_backward(const NormBackward& norm, const NormGrads& grads, const NormAgain* again) const {
  const auto pass =
      work_.pass((again != nullptr ? 4 : 3) * work_.bytes({&norm.grad_ND}) + work_.bytes({&norm.residual_ND}));
  const auto& x_ND = norm.x_ND;
  const auto dim = x_ND.size(1);
  if (cpu_ != nullptr) {
    auto out_ND = at::empty_like(x_ND);
    if (again != nullptr) again->out_ND = at::empty_like(x_ND);
    auto grad_gamma = zero_sums(x_ND);
    at::Tensor grad_y_bias;
    if (grads.y_bias != nullptr) grad_y_bias = zero_sums(x_ND);
    const std::array columns{floats_or_null(grad_gamma), floats_or_null(grad_y_bias)};
    launch_with_columns(*this, x_ND.size(0), columns, dim,
                        [&](std::int64_t b, std::int64_t e, const auto& chunk_columns) {
                          const kernels::RmsNormBackwardArgs args{out_ND.data_ptr(),
                                                                  norm.grad_ND.const_data_ptr(),
                                                                  data_or_null(norm.residual_ND),
                                                                  x_ND.const_data_ptr(),
                                                                  norm.saved.rstd_N.const_data_ptr<float>(),
                                                                  norm.gamma_D.const_data_ptr(),
                                                                  chunk_columns[0],
                                                                  chunk_columns[1],
                                                                  again == nullptr ? nullptr : again->out_ND.data_ptr(),
                                                                  static_cast<float>(norm.saved.offset),
                                                                  dim};
                          cpu_->rms_norm_backward(kernel_type(x_ND), args, b, e);
                        });
    accumulate(grads.gamma, grad_gamma);
    if (grads.y_bias != nullptr) accumulate(grads.y_bias, grad_y_bias);
    return out_ND;
  }
  if (const auto* fused = fused_for({&x_ND, &norm.grad_ND, &norm.residual_ND, &norm.gamma_D})) {
    auto dx_ND = fused_norm_backward(*fused, norm, {grads.gamma, nullptr, nullptr}, again);
    bias_grad(grads.y_bias, dx_ND);
    return dx_ND;
  }
  const auto gamma = wide_gamma(norm.gamma_D, norm.saved.offset);
  auto dx_ND = at::empty_like(x_ND);
  auto grad_gamma = zero_sums(x_ND);
  if (again != nullptr) again->out_ND = at::empty_like(x_ND);
  for_row_pieces(*this, x_ND.size(0), dim, [&](std::int64_t first, std::int64_t rows) {
    const auto part = [&](const at::Tensor& of) { return of.narrow(0, first, rows); };
    const auto rstd = part(norm.saved.rstd_N).reshape({rows, 1});
    const auto normal = part(x_ND).to(at::kFloat) * rstd;
    const auto grad = part(norm.grad_ND).to(at::kFloat);
    grad_gamma.add_(column_sums(grad * normal));
    const auto scaled = grad * gamma;
    auto dx = (scaled - normal * (scaled * normal).mean(at::IntArrayRef{1}, true)) * rstd;
    if (norm.residual_ND.defined()) dx.add_(part(norm.residual_ND));
    part(dx_ND).copy_(dx);
    if (again != nullptr) part(again->out_ND).copy_(normal * gamma);
  });
  accumulate(grads.gamma, grad_gamma);
  bias_grad(grads.y_bias, dx_ND);
  return dx_ND;
}

}  // namespace fsdp
