// Norms, activations and biases by fused kernels.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "lib/compute/ops/fused_args.hpp"
#include "lib/compute/ops/fused_ops.hpp"

namespace fsdp {

using namespace detail;

namespace {

at::Tensor float_room(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, like.options().dtype(at::kFloat));
}

}  // namespace

NormResult FusedOps::add_layer_norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D,
                                    const at::Tensor& gamma_D, const at::Tensor& beta_D, double eps) const {
  if (!takes({&x_ND, &y_ND, &y_bias_D, &gamma_D, &beta_D}))
    return AtenOps::add_layer_norm(x_ND, y_ND, y_bias_D, gamma_D, beta_D, eps);
  return norm(x_ND, y_ND, y_bias_D, gamma_D, beta_D, eps);
}

NormResult FusedOps::add_rms_norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D,
                                  const at::Tensor& gamma_D, const RmsNorm& kind) const {
  if (!takes({&x_ND, &y_ND, &y_bias_D, &gamma_D})) return AtenOps::add_rms_norm(x_ND, y_ND, y_bias_D, gamma_D, kind);
  return norm(x_ND, y_ND, y_bias_D, gamma_D, {}, kind);
}

NormResult FusedOps::norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D,
                          const at::Tensor& gamma_D, const at::Tensor& beta_D, const RmsNorm& kind) const {
  const auto n = x_ND.size(0), dim = x_ND.size(1);
  NormResult result;
  result.eps = kind.eps;
  result.offset = kind.offset;
  result.sum_ND = y_ND.defined() ? at::empty_like(x_ND) : x_ND;
  result.out_ND = at::empty_like(x_ND);
  if (beta_D.defined()) result.mean_N = float_room({n}, x_ND);
  result.rstd_N = float_room({n}, x_ND);
  fused::Norm pass{};
  pass.type = fused_type(x_ND);
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
  pass.rows = n;
  kernels_->norm(pass);
  return result;
}

bool FusedOps::takes_norm(const NormBackward& norm) const {
  return takes({&norm.x_ND, &norm.grad_ND, &norm.residual_ND, &norm.gamma_D});
}

at::Tensor FusedOps::layer_norm_backward(const NormBackward& norm, const NormGrads& grads,
                                         const NormAgain* again) const {
  return takes_norm(norm) ? norm_backward(norm, grads, again) : AtenOps::layer_norm_backward(norm, grads, again);
}

at::Tensor FusedOps::rms_norm_backward(const NormBackward& norm, const NormGrads& grads, const NormAgain* again) const {
  if (!takes_norm(norm)) return AtenOps::rms_norm_backward(norm, grads, again);
  auto dx_ND = norm_backward(norm, {grads.gamma, nullptr, nullptr}, again);
  bias_grad(grads.y_bias, dx_ND);
  return dx_ND;
}

at::Tensor FusedOps::norm_backward(const NormBackward& norm, const NormGrads& grads, const NormAgain* again) const {
  const auto& x_ND = norm.x_ND;
  const auto n = x_ND.size(0), dim = x_ND.size(1);
  const bool layer_norm = norm.saved.mean_N.defined();
  const int targets = layer_norm ? 3 : 1;
  auto dx_ND = at::empty_like(x_ND);
  if (again != nullptr) again->out_ND = at::empty_like(x_ND);
  const auto partial = float_room({fused::norm_blocks(n), targets, dim}, x_ND);
  fused::NormBackwardPass pass{};
  pass.type = fused_type(x_ND);
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
  kernels_->norm_backward(pass);
  const fused::ColumnSums sums{pass.partial,
                               fused::norm_blocks(n),
                               targets,
                               pass.dim,
                               {target_of(grads.gamma), target_of(grads.beta), target_of(grads.y_bias)}};
  kernels_->column_sums(sums);
  return dx_ND;
}

void FusedOps::column_pass_into(GradSlot* slot, fused::ColumnPassKind kind, const at::Tensor& x_ND,
                                const at::Tensor& y_ND, at::Tensor* out_ND) const {
  const auto blocks = fused::column_blocks(x_ND.size(0));
  const auto partial = float_room({blocks, x_ND.size(1)}, x_ND);
  auto pass = column_pass_of(kind, x_ND, y_ND, {}, out_ND);
  pass.partial = floats_in(partial);
  kernels_->column_pass(pass);
  if (slot != nullptr) kernels_->column_sums({pass.partial, blocks, 1, pass.dim, {target_of(slot), {}, {}}});
}

at::Tensor FusedOps::bias_gelu(at::Tensor& pre_NF, const at::Tensor& bias_F) const {
  if (!takes({&pre_NF, &bias_F})) return AtenOps::bias_gelu(pre_NF, bias_F);
  auto out_NF = at::empty_like(pre_NF);
  kernels_->column_pass(column_pass_of(fused::ColumnPassKind::bias_gelu, pre_NF, {}, bias_F, &out_NF));
  return out_NF;
}

void FusedOps::bias_gelu_backward(at::Tensor& grad_NF, const at::Tensor& pre_NF, GradSlot* grad_bias_F,
                                  at::Tensor* again_NF) const {
  if (!takes({&grad_NF, &pre_NF})) return AtenOps::bias_gelu_backward(grad_NF, pre_NF, grad_bias_F, again_NF);
  if (again_NF != nullptr) *again_NF = at::empty_like(pre_NF);
  column_pass_into(grad_bias_F, fused::ColumnPassKind::bias_gelu_backward, grad_NF, pre_NF, again_NF);
}

void FusedOps::bias_grad(GradSlot* slot, const at::Tensor& grad_ND) const {
  if (slot == nullptr) return;
  if (!takes({&grad_ND})) return AtenOps::bias_grad(slot, grad_ND);
  column_pass_into(slot, fused::ColumnPassKind::sum, grad_ND, {}, nullptr);
}

void FusedOps::add_bias(at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& bias_D) const {
  if (!takes({&x_ND, &y_ND, &bias_D})) return AtenOps::add_bias(x_ND, y_ND, bias_D);
  kernels_->column_pass(column_pass_of(fused::ColumnPassKind::add_bias, x_ND, y_ND, bias_D, nullptr));
}

bool FusedOps::takes_gated(const at::Tensor& gate_NF, const at::Tensor& up_NF) const {
  return kernels_ != nullptr && has_fused_type(gate_NF) && gate_NF.numel() > 0 && !is_on_host(gate_NF) &&
         up_NF.scalar_type() == gate_NF.scalar_type() && up_NF.strides() == gate_NF.strides() && gate_NF.stride(1) == 1;
}

void FusedOps::gated_pass(GateActivation gate, const at::Tensor& out_NF, const at::Tensor& gate_NF,
                          const at::Tensor& up_NF, bool backward) const {
  fused::Gated pass{};
  pass.type = fused_type(gate_NF);
  pass.out_NF = address_in(out_NF);
  pass.gate_NF = const_cast<void*>(address_of(gate_NF));  // the forward only reads it
  pass.up_NF = const_cast<void*>(address_of(up_NF));
  pass.gelu = gate == GateActivation::gelu_tanh;
  pass.backward = backward;
  pass.stride = gate_NF.stride(0);
  const bool whole = gate_NF.is_contiguous();
  pass.rows = whole ? 1 : gate_NF.size(0);
  pass.width = whole ? gate_NF.numel() : gate_NF.size(1);
  pass.packed =
      are_packed(whole ? 8 : pass.stride, {pass.out_NF, pass.gate_NF, pass.up_NF}) && (whole || pass.width % 8 == 0);
  kernels_->gated(pass);
}

at::Tensor FusedOps::gated(GateActivation gate, const at::Tensor& gate_NF, const at::Tensor& up_NF) const {
  if (!takes_gated(gate_NF, up_NF)) return AtenOps::gated(gate, gate_NF, up_NF);
  auto out_NF = at::empty(gate_NF.sizes(), gate_NF.options());
  gated_pass(gate, out_NF, gate_NF, up_NF, false);
  return out_NF;
}

void FusedOps::gated_backward(GateActivation gate, at::Tensor& grad_NF, at::Tensor& gate_NF, at::Tensor& up_NF) const {
  if (!takes({&grad_NF}) || !takes_gated(gate_NF, up_NF) || grad_NF.scalar_type() != gate_NF.scalar_type())
    return AtenOps::gated_backward(gate, grad_NF, gate_NF, up_NF);
  gated_pass(gate, grad_NF, gate_NF, up_NF, true);
}

}  // namespace fsdp
