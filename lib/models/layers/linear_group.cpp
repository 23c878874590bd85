#include "lib/models/layers/linear_group.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "lib/base/types/hash_functions.hpp"
#include "lib/base/types/index.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/compute/ops/products/fp8.hpp"
#include "lib/compute/ops/updates/companion.hpp"
#include "lib/compute/tensor/layer.hpp"

namespace fsdp::detail {
namespace {

// --- one matrix multiplied in fp8. Weights and inputs are e4m3, gradients e5m2, each matrix with one scale; sums are
// accumulated as in torchao's tensorwise recipe. No fp8 tensor outlives a micro-batch.

/// Returns the weight in fp8: as gathered, or cast now.
Fp8Matrix weight_in_fp8(const Ops& ops, const at::Tensor& weight_OI, Fp8Sides sides) {
  if (weight_OI.scalar_type() != fp8_type(Fp8Format::e4m3)) return ops.to_fp8(weight_OI, Fp8Format::e4m3, sides);
  Fp8Matrix made{weight_OI, {}, companion_of(weight_OI)};
  if (sides == Fp8Sides::columns) made.columns_CR = ops.fp8_columns(weight_OI);
  return made;
}

/// out = x W^T.
/// \param x8  x in fp8; the first matrix of the group that reads x fills it
/// \param weight_OI  in the parameters' dtype, or as e4m3 codes that were gathered with their scale
void fp8_forward(const Ops& ops, const at::Tensor& out_NO, Fp8Matrix& x8, const at::Tensor& x_NI,
                 const at::Tensor& weight_OI) {
  if (x_NI.size(0) == 0) return;
  if (!x8.rows_RC.defined()) x8 = ops.to_fp8(x_NI, Fp8Format::e4m3, Fp8Sides::rows);
  const auto weight8 = weight_in_fp8(ops, weight_OI, Fp8Sides::rows);
  auto out = out_NO;
  ops.fp8_product(out, {x8.rows_RC, x8.inverse}, {weight8.rows_RC, weight8.inverse}, Fp8Sums::fast, false);
}

/// grad_x (+)= grad W.
/// \param grad_x_NI  undefined for the first matrix of the group, which allocates it
/// \param weight_OI  as in fp8_forward()
/// \param keep  also casts grad by columns, for fp8_weight_grad()
/// \return grad in fp8
Fp8Matrix fp8_backward(const Ops& ops, at::Tensor& grad_x_NI, const at::Tensor& grad_NO, const at::Tensor& weight_OI,
                       bool keep) {
  if (grad_NO.size(0) == 0) {
    if (!grad_x_NI.defined()) grad_x_NI = at::empty({0, weight_OI.size(1)}, grad_NO.options());
    return {};
  }
  auto grad8 = ops.to_fp8(grad_NO, Fp8Format::e5m2, keep ? Fp8Sides::both : Fp8Sides::rows);
  const auto weight8 = weight_in_fp8(ops, weight_OI, Fp8Sides::columns);
  const bool add = grad_x_NI.defined();
  if (!add) grad_x_NI = at::empty({grad_NO.size(0), weight_OI.size(1)}, grad_NO.options());
  ops.fp8_product(grad_x_NI, {grad8.rows_RC, grad8.inverse}, {weight8.columns_CR, weight8.inverse}, Fp8Sums::exact,
                  add);
  grad8.rows_RC.reset();
  return grad8;
}

/// slot (+)= grad^T x.
/// \param x8  x by columns; the first matrix of the group fills it
/// \param x_largest  as the forward found it. If x was computed again and differs in a last bit, the cast saturates
void fp8_weight_grad(const Ops& ops, GradSlot& slot, const Fp8Matrix& grad8, Fp8Matrix& x8, const at::Tensor& x_NI,
                     const at::Tensor& x_largest) {
  if (x_NI.size(0) == 0) return Ops::finish(slot);
  if (!x8.columns_CR.defined()) x8 = ops.fp8_cast(x_NI, x_largest, Fp8Format::e4m3, Fp8Sides::columns);
  ops.fp8_product(slot.grad, {grad8.columns_CR, grad8.inverse}, {x8.columns_CR, x8.inverse}, Fp8Sums::exact,
                  slot.written);
  slot.written = true;
}

// --- the group

at::Tensor param(LayerParams p, int place) { return element(p, place); }
GradSlot* slot(LayerGrads g, int place) { return element(g, place); }

/// out (+)= grad W, computed in W's dtype. \param out_NI  undefined for the first matrix, which allocates it
void add_back(const Ops& ops, at::Tensor& out_NI, const at::Tensor& grad_NO, const at::Tensor& weight_OI) {
  if (weight_OI.scalar_type() != grad_NO.scalar_type()) {
    const auto part_NI = ops.linear_backward(grad_NO.to(weight_OI.scalar_type()), weight_OI);
    out_NI = out_NI.defined() ? out_NI.add_(part_NI) : part_NI.to(grad_NO.scalar_type());
  } else if (out_NI.defined()) {
    ops.linear_backward_add(out_NI, grad_NO, weight_OI);
  } else {
    out_NI = ops.linear_backward(grad_NO, weight_OI);
  }
}

/// Returns the rows of `parts` as one matrix if they are adjacent in one storage; otherwise undefined.
at::Tensor joined_rows(std::span<const at::Tensor> parts) {
  if (parts.size() < 2) return {};
  const auto& first = parts.front();
  auto rows = std::int64_t{0};
  for (const auto& part : parts) {
    if (part.dim() != 2 || !part.is_contiguous() || !part.is_alias_of(first) ||
        part.scalar_type() != first.scalar_type() || part.size(1) != first.size(1) ||
        part.storage_offset() != first.storage_offset() + rows * first.size(1))
      return {};
    rows += part.size(0);
  }
  return first.as_strided({rows, first.size(1)}, {first.size(1), 1});
}

/// Returns the columns of `parts` as one matrix if they are adjacent; otherwise undefined.
at::Tensor joined_columns(std::span<const at::Tensor> parts) {
  if (parts.size() < 2) return {};
  const auto& first = parts.front();
  auto columns = std::int64_t{0};
  for (const auto& part : parts) {
    if (part.dim() != 2 || part.strides() != first.strides() || part.stride(1) != 1 || !part.is_alias_of(first) ||
        part.storage_offset() != first.storage_offset() + columns)
      return {};
    columns += part.size(1);
  }
  return first.as_strided({first.size(0), columns}, {first.stride(0), 1});
}

}  // namespace

LinearGroup::LinearGroup(const Ops& ops, const DecoderOptions& options, std::vector<Linear> matrices,
                         std::uint64_t dropout_place)
    : ops_(ops),
      dropout_(options.lora.dropout),
      compute_dtype_(options.compute_dtype),
      fp8_(asks_for_fp8(options.compute_dtype)),
      matrices_(std::move(matrices)),
      dropout_place_(dropout_place) {
  auto columns = std::int64_t{0};
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    if (matrices_[i].lora_a < 0) continue;
    adapted_.push_back(i);
    first_column_.push_back(columns);
    columns += matrices_[i].adapter.rank;
    one_scale_ = one_scale_ && matrices_[i].adapter.scale == adapter(0).scale;
  }
}

at::Tensor LinearGroup::joined_weight(LayerParams p, at::ScalarType activations) const {
  std::vector<at::Tensor> weights;
  for (const auto& matrix : matrices_) {
    // fp8 matrices have separate scales.
    if (fp8_ || matrix.absmax >= 0 || matrix.magnitude >= 0 || p[matrix.weight].scalar_type() != activations) return {};
    weights.push_back(p[matrix.weight]);
  }
  return joined_rows(weights);
}

std::vector<at::Tensor> LinearGroup::make_outputs(LayerParams p, const at::Tensor& x_NI) const {
  std::vector<at::Tensor> outs_NO;
  const auto joined = joined_weight(p, x_NI.scalar_type());
  const auto all_NO = joined.defined() ? at::empty({x_NI.size(0), joined.size(0)}, x_NI.options()) : at::Tensor();
  auto first = std::int64_t{0};
  for (const auto& matrix : matrices_) {
    outs_NO.push_back(all_NO.defined() ? all_NO.narrow(1, first, matrix.rows)
                                       : at::empty({x_NI.size(0), matrix.rows}, x_NI.options()));
    first += matrix.rows;
  }
  return outs_NO;
}

at::Tensor LinearGroup::weight(LayerParams p, const Linear& matrix, at::ScalarType activations) const {
  if (matrix.absmax < 0) return p[matrix.weight];
  const bool nested = matrix.nested_absmax >= 0;
  return ops_.dequantize(
      {p[matrix.weight], param(p, matrix.absmax), nested ? param(p, matrix.nested_absmax) : at::Tensor(),
       nested ? param(p, matrix.nested_offset) : at::Tensor(), matrix.rows, matrix.columns},
      compute_dtype_.value_or(activations));
}

bool LinearGroup::is_fp8(const Linear& matrix) const {
  return fp8_ && matrix.absmax < 0 && can_be_fp8(matrix.rows, matrix.columns);
}

void LinearGroup::multiply_one(const Linear& matrix, const at::Tensor& out_NO, const at::Tensor& x_NI,
                               const at::Tensor& weight_OI, Fp8Matrix& x8, const at::Tensor& bias_O) const {
  if (is_fp8(matrix)) return fp8_forward(ops_, out_NO, x8, x_NI, weight_OI);
  auto out = out_NO;
  if (bias_O.defined()) return ops_.linear_biased_into(out, x_NI, weight_OI, bias_O);
  if (weight_OI.scalar_type() == x_NI.scalar_type()) return ops_.linear_into(out, x_NI, weight_OI);
  out.copy_(ops_.linear(x_NI.to(weight_OI.scalar_type()), weight_OI));
}

std::vector<at::Tensor> LinearGroup::biases(LayerParams p) const {
  std::vector<at::Tensor> found;
  for (const auto& matrix : matrices_)
    if (matrix.bias >= 0) found.push_back(param(p, matrix.bias));
  return found;
}

bool LinearGroup::adds_bias_in_product(LayerParams p, at::ScalarType activations) const {
  return c10::elementSize(activations) == 2 && std::ranges::all_of(matrices_, [&](const Linear& matrix) {
           return !is_fp8(matrix) && matrix.absmax < 0 && matrix.magnitude < 0 &&
                  p[matrix.weight].scalar_type() == activations;
         });
}

void LinearGroup::forward(LayerParams p, const MicroBatch& batch, const at::Tensor& x_NI, std::span<at::Tensor> outs_NO,
                          LinearState* keep, std::span<const at::Tensor> biases_O) const {
  const bool in_product = !biases_O.empty() && adds_bias_in_product(p, x_NI.scalar_type());
  multiply(p, batch, x_NI, outs_NO, keep, in_product ? biases_O : std::span<const at::Tensor>());
  for (std::size_t i = 0; i < biases_O.size() && !in_product; ++i) {
    if (outs_NO[i].is_contiguous()) {
      ops_.add_bias(outs_NO[i], {}, biases_O[i]);
    } else {
      outs_NO[i].add_(biases_O[i]);
    }
  }
}

void LinearGroup::multiply(LayerParams p, const MicroBatch& batch, const at::Tensor& x_NI,
                           std::span<at::Tensor> outs_NO, LinearState* keep,
                           std::span<const at::Tensor> biases_O) const {
  std::vector<at::Tensor> norms_O;
  auto joined_NO = joined_columns(outs_NO);
  const auto joined_OI = joined_NO.defined() ? joined_weight(p, x_NI.scalar_type()) : at::Tensor();
  if (joined_OI.defined()) {
    for (std::size_t i = 0; i < biases_O.size(); ++i) ops_.fill_rows(outs_NO[i], biases_O[i]);
    ops_.linear_into(joined_NO, x_NI, joined_OI, !biases_O.empty());
  }
  Fp8Matrix x8;
  for (std::size_t i = 0; i < matrices_.size() && !joined_OI.defined(); ++i) {
    const auto& matrix = matrices_[i];
    const auto weight_OI = weight(p, matrix, x_NI.scalar_type());
    multiply_one(matrix, outs_NO[i], x_NI, weight_OI, x8, biases_O.empty() ? at::Tensor() : biases_O[i]);
    if (matrix.magnitude >= 0)
      norms_O.push_back(
          ops_.lora_row_norms(weight_OI, param(p, matrix.lora_b), param(p, matrix.lora_a), matrix.adapter.scale));
  }
  if (keep != nullptr) keep->x_largest = x8.largest;
  if (!has_adapters()) return;
  const auto down_NR = ops_.linear(adapter_input(batch, x_NI), scaled_a(p, x_NI.scalar_type()));
  for (std::size_t n = 0; n < adapted_.size(); ++n) {
    const auto& matrix = matrices_[adapted_[n]];
    auto& out_NO = outs_NO[adapted_[n]];
    add_adapter(p, n, out_NO, down_NR);
    add_lora_bias(p, matrix, out_NO);
    if (matrix.magnitude >= 0) out_NO.mul_(param(p, matrix.magnitude) / norms_O[n]);
  }
  if (keep == nullptr) return;
  keep->down_NR = down_NR;
  keep->norms_O = std::move(norms_O);
}

at::Tensor LinearGroup::project(LayerParams p, const MicroBatch& batch, const at::Tensor& x_NI, LinearState* keep,
                                const at::Tensor& bias_O) const {
  auto outs_NO = make_outputs(p, x_NI);
  forward(p, batch, x_NI, outs_NO, keep,
          bias_O.defined() ? std::span<const at::Tensor>(&bias_O, 1) : std::span<const at::Tensor>());
  return outs_NO[0];
}

at::Tensor LinearGroup::backward_input(LayerParams p, LayerGrads g, const MicroBatch& batch,
                                       std::span<const at::Tensor> grads_NO, LinearState& state) const {
  at::Tensor grad_x_NI;
  if (has_adapters()) state.grad_down_NR = at::empty(state.down_NR.sizes(), state.down_NR.options());
  const auto joined_NO = joined_columns(grads_NO);
  const auto joined_OI = joined_NO.defined() ? joined_weight(p, joined_NO.scalar_type()) : at::Tensor();
  if (joined_OI.defined()) grad_x_NI = ops_.linear_backward(joined_NO, joined_OI);
  for (std::size_t i = 0, n = 0; i < matrices_.size(); ++i) {
    const auto& matrix = matrices_[i];
    const auto grad_NO = matrix.magnitude < 0 ? grads_NO[i] : unscaled(p, n, grads_NO[i], state);
    if (is_fp8(matrix)) {
      state.grads8.resize(matrices_.size());
      state.grads8[i] = fp8_backward(ops_, grad_x_NI, grad_NO, p[matrix.weight], g[matrix.weight] != nullptr);
    } else if (!joined_OI.defined()) {
      add_back(ops_, grad_x_NI, grad_NO, weight(p, matrix, grad_NO.scalar_type()));
    }
    if (matrix.lora_a < 0) continue;
    adapter_grad(slot(g, matrix.lora_b), grad_NO, part(state.down_NR, n));
    auto grad_down_NR = part(state.grad_down_NR, n++);
    ops_.linear_backward_into(grad_down_NR, grad_NO, param(p, matrix.lora_b).to(grad_NO.scalar_type()));
  }
  if (!has_adapters()) return grad_x_NI;
  const auto a_RI = scaled_a(p, grad_x_NI.scalar_type());
  const auto keys = dropout_keys(batch);
  if (!keys.defined()) {
    ops_.linear_backward_add(grad_x_NI, state.grad_down_NR, a_RI);
    return grad_x_NI;
  }
  auto through_adapters_NI = ops_.linear_backward(state.grad_down_NR, a_RI);
  ops_.dropout(through_adapters_NI, keys, dropout_);
  GradSlot sum{grad_x_NI, true};
  ops_.accumulate(&sum, through_adapters_NI);
  return grad_x_NI;
}

void LinearGroup::backward_weights(LayerParams p, LayerGrads g, const MicroBatch& batch,
                                   std::span<const at::Tensor> grads_NO, const at::Tensor& x_NI,
                                   LinearState& state) const {
  const bool joined = joined_weight_grad(g, grads_NO, x_NI);
  Fp8Matrix x8;
  for (std::size_t i = 0, n = 0; i < matrices_.size(); ++i) {
    const auto& matrix = matrices_[i];
    if (g[matrix.weight] != nullptr && is_fp8(matrix)) {
      fp8_weight_grad(ops_, *g[matrix.weight], state.grads8[i], x8, x_NI, state.x_largest);
      state.grads8[i] = {};
    } else if (!joined) {
      ops_.weight_grad(g[matrix.weight], grads_NO[i], x_NI);
    }
    if (matrix.bias >= 0 && slot(g, matrix.bias) != nullptr)
      ops_.bias_grad(slot(g, matrix.bias), grads_NO[i].contiguous());
    if (matrix.magnitude >= 0) magnitude_grad(p, g, n, grads_NO[i], x_NI, state);
    if (matrix.lora_b_bias >= 0 && slot(g, matrix.lora_b_bias) != nullptr) {
      const auto scaled_NO = grads_NO[i].to(at::kFloat) * matrix.adapter.scale;
      ops_.bias_grad(slot(g, matrix.lora_b_bias), scaled_NO.contiguous());
    }
    if (matrix.lora_a >= 0) ++n;
  }
  if (!has_adapters()) return;
  GradSlot sum{at::empty({state.grad_down_NR.size(1), x_NI.size(1)}, x_NI.options().dtype(at::kFloat))};
  adapter_grad(&sum, state.grad_down_NR, adapter_input(batch, x_NI));
  scale_rows(sum.grad);
  for (std::size_t n = 0; n < adapted_.size(); ++n)
    ops_.accumulate(slot(g, matrices_[adapted_[n]].lora_a), sum.grad.narrow(0, first_column_[n], adapter(n).rank));
}

bool LinearGroup::joined_weight_grad(LayerGrads g, std::span<const at::Tensor> grads_NO, const at::Tensor& x_NI) const {
  if (fp8_) return false;
  std::vector<at::Tensor> slots;
  const auto* first = g[matrices_.front().weight];
  for (const auto& matrix : matrices_) {
    const auto* slot = g[matrix.weight];
    if (slot == nullptr || slot->written != first->written) return false;
    slots.push_back(slot->grad);
  }
  GradSlot all{joined_rows(slots), first->written};
  const auto joined_NO = joined_columns(grads_NO);
  if (!all.grad.defined() || !joined_NO.defined()) return false;
  ops_.weight_grad(&all, joined_NO, x_NI);
  for (const auto& matrix : matrices_) g[matrix.weight]->written = true;
  return true;
}

bool LinearGroup::needs_input(LayerGrads g) const {
  return has_adapters() || std::any_of(matrices_.begin(), matrices_.end(),
                                       [&](const Linear& matrix) { return g[matrix.weight] != nullptr; });
}

at::Tensor LinearGroup::dropout_keys(const MicroBatch& batch) const {
  if (dropout_ == 0 || !batch.sample_keys.defined()) return {};
  return ops_.dropout_keys({batch.sample_keys, dropout_place_ * kDropoutIndexSpread}, batch.length, kSplitmix64Step);
}

at::Tensor LinearGroup::adapter_input(const MicroBatch& batch, const at::Tensor& x_NI) const {
  const auto keys = dropout_keys(batch);
  if (!keys.defined()) return x_NI;
  auto dropped_NI = x_NI.clone();
  ops_.dropout(dropped_NI, keys, dropout_);
  return dropped_NI;
}

at::Tensor LinearGroup::part(const at::Tensor& down_NR, std::size_t n) const {
  return down_NR.narrow(1, first_column_[n], adapter(n).rank);
}

void LinearGroup::scale_rows(at::Tensor& all_RI) const {
  if (one_scale_) {
    if (adapter(0).scale != 1) all_RI.mul_(adapter(0).scale);
    return;
  }
  for (std::size_t n = 0; n < adapted_.size(); ++n)
    all_RI.narrow(0, first_column_[n], adapter(n).rank).mul_(adapter(n).scale);
}

at::Tensor LinearGroup::scaled_a(LayerParams p, at::ScalarType dtype) const {
  std::vector<at::Tensor> all_a;
  for (const auto i : adapted_) all_a.push_back(param(p, matrices_[i].lora_a));
  auto all_RI = at::cat(all_a);
  scale_rows(all_RI);
  return all_RI.to(dtype);
}

void LinearGroup::adapter_grad(GradSlot* slot, const at::Tensor& grad_NO, const at::Tensor& x_NI) const {
  // Processors round a product of 16-bit factors to 16 bits.
  if (slot == nullptr || !ops_.on_host()) return ops_.weight_grad(slot, grad_NO, x_NI);
  ops_.weight_grad(slot, grad_NO.to(at::kFloat), x_NI.to(at::kFloat));
}

void LinearGroup::add_adapter(LayerParams p, std::size_t n, at::Tensor& out_NO, const at::Tensor& down_NR) const {
  const auto& b_OR = param(p, matrices_[adapted_[n]].lora_b);
  ops_.linear_into(out_NO, part(down_NR, n), b_OR.to(down_NR.scalar_type()), true);
}

void LinearGroup::add_lora_bias(LayerParams p, const Linear& matrix, at::Tensor& out_NO) const {
  if (matrix.lora_b_bias >= 0) out_NO.add_(param(p, matrix.lora_b_bias), matrix.adapter.scale);
}

at::Tensor LinearGroup::unscaled(LayerParams p, std::size_t n, const at::Tensor& grad_NO,
                                 const LinearState& state) const {
  const auto scale_O = param(p, matrices_[adapted_[n]].magnitude) / state.norms_O[n];
  return (grad_NO * scale_O).to(grad_NO.scalar_type());
}

void LinearGroup::magnitude_grad(LayerParams p, LayerGrads g, std::size_t n, const at::Tensor& grad_NO,
                                 const at::Tensor& x_NI, const LinearState& state) const {
  const auto& matrix = matrices_[adapted_[n]];
  if (slot(g, matrix.magnitude) == nullptr) return;
  auto direction_NO = at::empty(grad_NO.sizes(), x_NI.options());
  Fp8Matrix x8;
  multiply_one(matrix, direction_NO, x_NI, weight(p, matrix, x_NI.scalar_type()), x8, {});
  add_adapter(p, n, direction_NO, state.down_NR);
  GradSlot sum{at::empty({grad_NO.size(1)}, grad_NO.options().dtype(at::kFloat))};
  ops_.bias_grad(&sum, grad_NO.to(at::kFloat) * direction_NO);
  ops_.accumulate(slot(g, matrix.magnitude), sum.grad.div_(state.norms_O[n]));
}

}  // namespace fsdp::detail
