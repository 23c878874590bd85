// Passes over rows: norms, activations, biases, rotary positions.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/silu.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "lib/compute/ops/aten_ops.hpp"

namespace fsdp {
namespace {

/// Calls body(first, rows) for pieces of the rows: float32 intermediates of plain operators are several times as large
/// as their inputs, and would otherwise limit the batch size of a GPU.
template <typename Body>
void for_pieces(const Ops& ops, std::int64_t rows, std::int64_t row_elements, const Body& body) {
  constexpr std::int64_t kElements = std::int64_t{1} << 24;
  const auto piece = std::max<std::int64_t>(1, kElements / std::max<std::int64_t>(1, row_elements));
  ops.repeat((rows + piece - 1) / piece, [&](std::int64_t i) { body(i * piece, std::min(piece, rows - i * piece)); });
}

at::Tensor wide_gamma(const at::Tensor& gamma_D, double offset) {
  auto gamma = gamma_D.to(at::kFloat);
  return offset == 0 ? gamma : gamma + offset;
}

/// Value and derivative of an activation, float32.
std::pair<at::Tensor, at::Tensor> activated(GateActivation gate, const at::Tensor& x) {
  if (gate == GateActivation::gelu_tanh) return {at::gelu(x, "tanh"), at::gelu_backward(at::ones_like(x), x, "tanh")};
  const auto sigmoid = x.sigmoid();
  return {x * sigmoid, sigmoid * (x * (1 - sigmoid) + 1)};
}

at::Tensor residual_sum(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D) {
  if (!y_ND.defined()) return x_ND;
  return y_bias_D.defined() ? x_ND + (y_ND + y_bias_D) : x_ND + y_ND;
}

}  // namespace

at::Tensor AtenOps::layer_norm(const at::Tensor& x_ND, const at::Tensor& gamma_D, const at::Tensor& beta_D,
                               NormResult& stats) const {
  auto [out, mean, rstd] = at::native_layer_norm(x_ND, {x_ND.size(1)}, gamma_D, beta_D, stats.eps);
  stats.mean_N = mean.reshape({x_ND.size(0)}).to(at::kFloat);
  stats.rstd_N = rstd.reshape({x_ND.size(0)}).to(at::kFloat);
  return out;
}

NormResult AtenOps::add_layer_norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D,
                                   const at::Tensor& gamma_D, const at::Tensor& beta_D, double eps) const {
  NormResult result;
  result.eps = eps;
  result.sum_ND = residual_sum(x_ND, y_ND, y_bias_D);
  result.out_ND = layer_norm(result.sum_ND, gamma_D, beta_D, result);
  return result;
}

std::array<at::Tensor, 3> AtenOps::layer_norm_grads(const NormBackward& norm) const {
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

at::Tensor AtenOps::layer_norm_backward(const NormBackward& norm, const NormGrads& grads,
                                        const NormAgain* again) const {
  auto [dx, dgamma, dbeta] = layer_norm_grads(norm);
  if (again != nullptr) {
    NormResult unused;
    unused.eps = norm.saved.eps;
    again->out_ND = layer_norm(norm.x_ND, norm.gamma_D, again->beta_D, unused);
  }
  accumulate(grads.gamma, dgamma);
  accumulate(grads.beta, dbeta);
  if (norm.residual_ND.defined()) dx.add_(norm.residual_ND);
  bias_grad(grads.y_bias, dx);
  return dx;
}

NormResult AtenOps::add_rms_norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D,
                                 const at::Tensor& gamma_D, const RmsNorm& kind) const {
  const auto n = x_ND.size(0), dim = x_ND.size(1);
  NormResult result;
  result.eps = kind.eps;
  result.offset = kind.offset;
  result.sum_ND = residual_sum(x_ND, y_ND, y_bias_D);
  result.out_ND = at::empty_like(x_ND);
  result.rstd_N = at::empty({n}, x_ND.options().dtype(at::kFloat));
  const auto gamma = wide_gamma(gamma_D, kind.offset);
  for_pieces(*this, n, dim, [&](std::int64_t first, std::int64_t rows) {
    const auto wide = result.sum_ND.narrow(0, first, rows).to(at::kFloat);
    const auto rstd = wide.square().mean(at::IntArrayRef{1}, true).add_(kind.eps).rsqrt_();
    result.rstd_N.narrow(0, first, rows).copy_(rstd.reshape({rows}));
    result.out_ND.narrow(0, first, rows).copy_(wide * rstd * gamma);
  });
  return result;
}

at::Tensor AtenOps::rms_norm_backward(const NormBackward& norm, const NormGrads& grads, const NormAgain* again) const {
  const auto& x_ND = norm.x_ND;
  const auto gamma = wide_gamma(norm.gamma_D, norm.saved.offset);
  auto dx_ND = at::empty_like(x_ND);
  auto grad_gamma = zero_sums(x_ND);
  if (again != nullptr) again->out_ND = at::empty_like(x_ND);
  for_pieces(*this, x_ND.size(0), x_ND.size(1), [&](std::int64_t first, std::int64_t rows) {
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

at::Tensor AtenOps::bias_gelu(at::Tensor& pre_NF, const at::Tensor& bias_F) const {
  if (bias_F.defined()) pre_NF.add_(bias_F);
  return at::gelu(pre_NF, "tanh");
}

void AtenOps::bias_gelu_backward(at::Tensor& grad_NF, const at::Tensor& pre_NF, GradSlot* grad_bias_F,
                                 at::Tensor* again_NF) const {
  if (again_NF != nullptr) *again_NF = at::gelu(pre_NF, "tanh");
  grad_NF.copy_(at::gelu_backward(grad_NF, pre_NF, "tanh"));
  bias_grad(grad_bias_F, grad_NF);
}

at::Tensor AtenOps::gated(GateActivation gate, const at::Tensor& gate_NF, const at::Tensor& up_NF) const {
  auto out_NF = at::empty(gate_NF.sizes(), gate_NF.options());
  for_pieces(*this, gate_NF.size(0), gate_NF.size(1), [&](std::int64_t first, std::int64_t rows) {
    const auto wide = gate_NF.narrow(0, first, rows).to(at::kFloat);
    const auto act = gate == GateActivation::gelu_tanh ? at::gelu(wide, "tanh") : at::silu(wide);
    out_NF.narrow(0, first, rows).copy_(act * up_NF.narrow(0, first, rows));
  });
  return out_NF;
}

void AtenOps::gated_backward(GateActivation gate, at::Tensor& grad_NF, at::Tensor& gate_NF, at::Tensor& up_NF) const {
  for_pieces(*this, gate_NF.size(0), gate_NF.size(1), [&](std::int64_t first, std::int64_t rows) {
    const auto part = [&](const at::Tensor& of) { return of.narrow(0, first, rows); };
    const auto [value, slope] = activated(gate, part(gate_NF).to(at::kFloat));
    const auto grad = part(grad_NF).to(at::kFloat);
    const auto up = part(up_NF).to(at::kFloat);
    // Compute all three before the first store: with float32 inputs, the inputs share memory with the results.
    const auto out = value * up;
    const auto grad_up = grad * value;
    const auto grad_gate = grad * up * slope;
    part(grad_NF).copy_(out);
    part(up_NF).copy_(grad_up);
    part(gate_NF).copy_(grad_gate);
  });
}

void AtenOps::add_bias(at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& bias_D) const {
  if (y_ND.defined() && bias_D.defined()) {
    x_ND.add_(y_ND + bias_D);
  } else {
    x_ND.add_(y_ND.defined() ? y_ND : bias_D);
  }
}

void AtenOps::bias_grad(GradSlot* slot, const at::Tensor& grad_ND) const {
  if (slot != nullptr) accumulate(slot, column_sums(grad_ND));
}

void AtenOps::rope(at::Tensor& x_NC, std::int64_t heads, std::int64_t head_size, const RopeTable& table,
                   const TokenPositions& place, bool inverse) const {
  const auto positions_N = row_positions(x_NC.size(0), place);
  const auto pick = [&](const at::Tensor& from_PH) { return select_rows(from_PH, positions_N).unsqueeze(1); };
  const auto cosine = pick(table.cos_PH);  // [N, 1, pairs]
  const auto sine = pick(table.sin_PH).mul(inverse ? -1.0 : 1.0);
  const auto pairs = table.cos_PH.size(1);
  auto rotated = x_NC.narrow(1, 0, heads * head_size)
                     .unflatten(1, {heads, head_size})
                     .narrow(2, 0, 2 * pairs)
                     .unflatten(2, {2, pairs});
  const auto low = rotated.select(2, 0).to(at::kFloat);
  const auto high = rotated.select(2, 1).to(at::kFloat);
  const auto new_low = low * cosine - high * sine;
  const auto new_high = high * cosine + low * sine;
  rotated.select(2, 0).copy_(new_low);
  rotated.select(2, 1).copy_(new_high);
}

}  // namespace fsdp
