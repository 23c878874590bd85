// Passes over rows between the products: activations, biases, dropout.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <utility>

#include "lib/compute/ops/fused_args.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/compute/ops/row_loops.hpp"
#include "lib/compute/tensor/memory_scope.hpp"

namespace fsdp {

using namespace detail;

namespace {

/// Value and derivative of an activation, float32.
std::pair<at::Tensor, at::Tensor> activated(GateActivation gate, const at::Tensor& x) {
  if (gate == GateActivation::gelu_tanh) return {at::gelu(x, "tanh"), at::gelu_backward(at::ones_like(x), x, "tanh")};
  const auto sigmoid = x.sigmoid();
  return {x * sigmoid, sigmoid * (x * (1 - sigmoid) + 1)};
}

/// Row stride of both tensors, in elements.
std::int64_t leading_of(const at::Tensor& gate_NF, const at::Tensor& up_NF) {
  TORCH_INTERNAL_ASSERT(gate_NF.strides() == up_NF.strides() && gate_NF.stride(1) == 1);
  return gate_NF.stride(0);
}

/// True if the fused kernel supports both, which need the same row stride.
bool fits_gated(const Ops& ops, const at::Tensor& gate_NF, const at::Tensor& up_NF) {
  return has_kernel_type(gate_NF) && gate_NF.numel() > 0 && !ops.is_on_host(gate_NF) &&
         up_NF.scalar_type() == gate_NF.scalar_type() && up_NF.strides() == gate_NF.strides() && gate_NF.stride(1) == 1;
}

fused::Gated gated_pass(GateActivation gate, const at::Tensor& out_NF, const at::Tensor& gate_NF,
                        const at::Tensor& up_NF, bool backward) {
  fused::Gated pass{};
  pass.type = kernel_type(gate_NF);
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
  return pass;
}

/// A pass of the fused kernels whose column sums are accumulated into the slot, which may be null.
void fused_columns(const fused::Kernels& kernels, GradSlot* slot, fused::ColumnPassKind kind, const at::Tensor& x_ND,
                   const at::Tensor& y_ND, at::Tensor* out_ND) {
  const auto blocks = fused::column_blocks(x_ND.size(0));
  const auto partial = at::empty({blocks, x_ND.size(1)}, x_ND.options().dtype(at::kFloat));
  auto pass = column_pass_of(kind, x_ND, y_ND, {}, out_ND);
  pass.partial = floats_in(partial);
  kernels.column_pass(pass);
  if (slot != nullptr) kernels.column_sums({pass.partial, blocks, 1, pass.dim, {target_of(slot), {}, {}}});
}

}  // namespace

at::Tensor Ops::zero_sums(const at::Tensor& x_ND) {
  return at::zeros({x_ND.size(1)}, x_ND.options().dtype(at::kFloat));
}

at::Tensor Ops::column_sums(const at::Tensor& x_ND) const { return x_ND.sum(at::IntArrayRef{0}, false, at::kFloat); }

// --- activations

at::Tensor Ops::exact_gelu(const at::Tensor& pre_NF) const {
  const auto pass = work_.rows(2, {&pre_NF});
  return at::gelu(pre_NF);
}

at::Tensor Ops::exact_gelu_backward(const at::Tensor& grad_NF, const at::Tensor& pre_NF) const {
  const auto pass = work_.rows(3, {&pre_NF});
  return at::gelu_backward(grad_NF, pre_NF);
}

at::Tensor Ops::bias_gelu(at::Tensor& pre_NF, const at::Tensor& bias_F) const {
  const auto counted = work_.rows(3, {&pre_NF});
  if (cpu_ != nullptr) {
    auto out_NF = at::empty_like(pre_NF);
    const auto dim = pre_NF.size(1);
    const kernels::GeluArgs args{pre_NF.data_ptr(), out_NF.data_ptr(), data_or_null(bias_F), dim};
    launch(pre_NF.size(0), row_grain(dim), [&](auto b, auto e) { cpu_->bias_gelu(kernel_type(pre_NF), args, b, e); });
    return out_NF;
  }
  if (const auto* fused = fused_for({&pre_NF, &bias_F})) {
    auto out_NF = at::empty_like(pre_NF);
    fused->column_pass(column_pass_of(fused::ColumnPassKind::bias_gelu, pre_NF, {}, bias_F, &out_NF));
    return out_NF;
  }
  if (bias_F.defined()) pre_NF.add_(bias_F);
  return at::gelu(pre_NF, "tanh");
}

void Ops::bias_gelu_backward(at::Tensor& grad_NF, const at::Tensor& pre_NF, GradSlot* grad_bias_F,
                             at::Tensor* again_NF) const {
  const auto counted = work_.rows(again_NF != nullptr ? 4 : 3, {&pre_NF});
  if (cpu_ != nullptr) {
    const auto dim = pre_NF.size(1);
    if (again_NF != nullptr) *again_NF = at::empty_like(pre_NF);
    auto grad_bias = zero_sums(pre_NF);
    const std::array columns{grad_bias.data_ptr<float>()};
    launch_with_columns(
        *this, pre_NF.size(0), columns, dim, [&](std::int64_t b, std::int64_t e, const auto& chunk_columns) {
          const kernels::GeluBackwardArgs args{grad_NF.data_ptr(), again_NF == nullptr ? nullptr : again_NF->data_ptr(),
                                               pre_NF.const_data_ptr(), chunk_columns[0], dim};
          cpu_->bias_gelu_backward(kernel_type(pre_NF), args, b, e);
        });
    accumulate(grad_bias_F, grad_bias);
    return;
  }
  if (const auto* fused = fused_for({&grad_NF, &pre_NF})) {
    if (again_NF != nullptr) *again_NF = at::empty_like(pre_NF);
    return fused_columns(*fused, grad_bias_F, fused::ColumnPassKind::bias_gelu_backward, grad_NF, pre_NF, again_NF);
  }
  if (again_NF != nullptr) *again_NF = at::gelu(pre_NF, "tanh");
  grad_NF.copy_(at::gelu_backward(grad_NF, pre_NF, "tanh"));
  bias_grad(grad_bias_F, grad_NF);
}

at::Tensor Ops::gated(GateActivation gate, const at::Tensor& gate_NF, const at::Tensor& up_NF) const {
  const auto counted = work_.rows(3, {&up_NF});
  auto out_NF = at::empty(gate_NF.sizes(), gate_NF.options());
  if (cpu_ != nullptr) {
    const auto dim = gate_NF.size(1);
    const kernels::GatedArgs args{out_NF.data_ptr(),          gate_NF.const_data_ptr(),
                                  up_NF.const_data_ptr(),     dim,
                                  leading_of(gate_NF, up_NF), gate == GateActivation::gelu_tanh};
    launch(gate_NF.size(0), row_grain(dim), [&](auto b, auto e) { cpu_->gated(kernel_type(gate_NF), args, b, e); });
  } else if (fused_ != nullptr && fits_gated(*this, gate_NF, up_NF)) {
    fused_->gated(gated_pass(gate, out_NF, gate_NF, up_NF, false));
  } else {
    for_row_pieces(*this, gate_NF.size(0), gate_NF.size(1), [&](std::int64_t first, std::int64_t rows) {
      const auto wide = gate_NF.narrow(0, first, rows).to(at::kFloat);
      const auto act = gate == GateActivation::gelu_tanh ? at::gelu(wide, "tanh") : at::silu(wide);
      out_NF.narrow(0, first, rows).copy_(act * up_NF.narrow(0, first, rows));
    });
  }
  return out_NF;
}

void Ops::gated_backward(GateActivation gate, at::Tensor& grad_NF, at::Tensor& gate_NF, at::Tensor& up_NF) const {
  const auto counted = work_.rows(6, {&up_NF});
  if (cpu_ != nullptr) {
    const auto dim = gate_NF.size(1);
    const kernels::GatedBackwardArgs args{grad_NF.data_ptr(),         gate_NF.data_ptr(),
                                          up_NF.data_ptr(),           dim,
                                          leading_of(gate_NF, up_NF), gate == GateActivation::gelu_tanh};
    launch(gate_NF.size(0), row_grain(dim),
           [&](auto b, auto e) { cpu_->gated_backward(kernel_type(gate_NF), args, b, e); });
    return;
  }
  const auto* fused = fused_for({&grad_NF});
  if (fused != nullptr && fits_gated(*this, gate_NF, up_NF) && grad_NF.scalar_type() == gate_NF.scalar_type())
    return fused->gated(gated_pass(gate, grad_NF, gate_NF, up_NF, true));
  for_row_pieces(*this, gate_NF.size(0), gate_NF.size(1), [&](std::int64_t first, std::int64_t rows) {
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

// --- biases

void Ops::fill_rows(at::Tensor& out_NO, const at::Tensor& bias_O) const {
  const auto pass = work_.rows(1, {&out_NO});
  out_NO.copy_(bias_O.expand_as(out_NO));
}

void Ops::add_bias(at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& bias_D) const {
  const auto counted = work_.rows(1, {&x_ND, &x_ND, &y_ND});
  if (cpu_ != nullptr) {
    const auto dim = x_ND.size(1);
    launch(x_ND.size(0), row_grain(dim), [&](auto b, auto e) {
      cpu_->add_bias(kernel_type(x_ND), x_ND.data_ptr(), data_or_null(y_ND), data_or_null(bias_D), dim, b, e);
    });
  } else if (const auto* fused = fused_for({&x_ND, &y_ND, &bias_D})) {
    fused->column_pass(column_pass_of(fused::ColumnPassKind::add_bias, x_ND, y_ND, bias_D, nullptr));
  } else if (y_ND.defined() && bias_D.defined()) {
    x_ND.add_(y_ND + bias_D);
  } else {
    x_ND.add_(y_ND.defined() ? y_ND : bias_D);
  }
}

void Ops::bias_grad(GradSlot* slot, const at::Tensor& grad_ND) const {
  if (slot == nullptr) return;
  const auto counted = work_.rows(1, {&grad_ND});
  if (cpu_ != nullptr) {
    const auto dim = grad_ND.size(1);
    auto sum = zero_sums(grad_ND);
    const std::array columns{sum.data_ptr<float>()};
    launch_with_columns(*this, grad_ND.size(0), columns, dim,
                        [&](std::int64_t b, std::int64_t e, const auto& chunk_columns) {
                          cpu_->column_sum(kernel_type(grad_ND), grad_ND.const_data_ptr(), chunk_columns[0], dim, b, e);
                        });
    accumulate(slot, sum);
  } else if (const auto* fused = fused_for({&grad_ND})) {
    fused_columns(*fused, slot, fused::ColumnPassKind::sum, grad_ND, {}, nullptr);
  } else {
    accumulate(slot, column_sums(grad_ND));
  }
}

// --- dropout

at::Tensor Ops::dropout_keys(const DropoutSeeds& place, std::int64_t rows_per_sample, std::uint64_t step) const {
  if (fused_ != nullptr) {
    const MemoryScope scope(MemoryCategory::activations);
    const auto samples_B = to_device(place.sample_keys_B);
    auto keys_N = at::empty({samples_B.size(0) * rows_per_sample}, at::TensorOptions(at::kLong).device(device()));
    if (keys_N.numel() > 0)
      fused_->dropout_keys({static_cast<const std::int64_t*>(address_of(samples_B)),
                            static_cast<std::int64_t*>(address_in(keys_N)), place.place, step, keys_N.numel(),
                            rows_per_sample});
    return keys_N;
  }
  const MemoryScope scope(MemoryCategory::activations, true);
  const auto samples = place.sample_keys_B.size(0);
  auto keys = at::empty({samples * rows_per_sample}, at::TensorOptions(at::kLong).device(host()));
  launch(1, 1, [&](std::int64_t, std::int64_t) {
    auto* out = keys.data_ptr<std::int64_t>();
    const auto* sample = place.sample_keys_B.const_data_ptr<std::int64_t>();
    for (std::int64_t b = 0; b < samples; ++b) {
      const auto first = static_cast<std::uint64_t>(sample[b]) ^ place.place;
      for (std::int64_t t = 0; t < rows_per_sample; ++t) {
        *out++ = static_cast<std::int64_t>(first + static_cast<std::uint64_t>(t) * step);
      }
    }
  });
  return keys;
}

at::Tensor Ops::dropout_mask(const at::Tensor& keys_N, std::int64_t columns, double probability,
                             at::ScalarType dtype) const {
  if (fused_ != nullptr) {
    auto mask = at::ones({keys_N.size(0), columns}, at::TensorOptions(dtype).device(device()));
    if (fused_for({&mask}) != nullptr) {
      dropout(mask, keys_N, probability);
      return mask;
    }
  }
  auto mask = at::ones({keys_N.size(0), columns}, at::TensorOptions(at::kFloat).device(host()));
  host_ops().dropout(mask, keys_N.to(host()), probability);
  return to_device(mask.to(dtype));
}

void Ops::dropout(at::Tensor& x_ND, const at::Tensor& keys_N, double probability) const {
  if (cpu_ == nullptr && is_on_host(x_ND)) {
    if (!work_.counts()) host_ops().dropout(x_ND, keys_N.to(host()), probability);
    return;
  }
  const auto counted = work_.rows(2, {&x_ND});
  if (cpu_ != nullptr) {
    const auto dim = x_ND.size(1);
    const kernels::DropoutArgs args{x_ND.data_ptr(),
                                    reinterpret_cast<const std::uint64_t*>(keys_N.const_data_ptr<std::int64_t>()),
                                    static_cast<float>(probability), dim};
    launch(x_ND.size(0), row_grain(dim), [&](auto b, auto e) { cpu_->dropout(kernel_type(x_ND), args, b, e); });
    return;
  }
  if (x_ND.numel() == 0) return;
  if (const auto* fused = fused_for({&x_ND})) {
    const auto keys = to_device(keys_N);
    auto pass = column_pass_of(fused::ColumnPassKind::dropout, x_ND, {}, {}, nullptr);
    pass.keys_N = static_cast<const std::int64_t*>(address_of(keys));
    pass.probability = static_cast<float>(probability);
    fused->column_pass(pass);
    return;
  }
  x_ND.mul_(dropout_mask(keys_N, x_ND.size(1), probability, x_ND.scalar_type()));
}

}  // namespace fsdp
