#pragma once
// Arguments of fused kernels from tensors; internal to lib/compute/ops.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "lib/compute/ops/fused_kernels.hpp"
#include "lib/compute/tensor/layer.hpp"
#include "lib/compute/tensor/scalar_type.hpp"

namespace fsdp::detail {

inline bool has_kernel_type(const at::Tensor& x) {
  const auto type = x.scalar_type();
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

inline const void* address_of(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }
inline void* address_in(const at::Tensor& x) { return x.defined() ? x.mutable_data_ptr() : nullptr; }
inline float* floats_in(const at::Tensor& x) { return static_cast<float*>(address_in(x)); }
inline const float* floats_of(const at::Tensor& x) { return static_cast<const float*>(address_of(x)); }
inline const std::int32_t* ids_of(const at::Tensor& x) { return static_cast<const std::int32_t*>(address_of(x)); }

/// True if rows of `width` elements at these addresses can be accessed in aligned vectors of eight.
inline bool are_packed(std::int64_t width, std::initializer_list<const void*> addresses) {
  bool packed = width % 8 == 0;
  for (const auto* address : addresses) packed = packed && reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
  return packed;
}

/// The destination of a gradient; marks the slot as written.
inline fused::GradTarget target_of(GradSlot* slot) {
  if (slot == nullptr) return {};
  const fused::GradTarget target{address_in(slot->grad), kernel_type(slot->grad), slot->written};
  slot->written = true;
  return target;
}

/// A pass over x [N, D]. y, bias and out may be undefined or null.
inline fused::ColumnPass column_pass_of(fused::ColumnPassKind kind, const at::Tensor& x_ND, const at::Tensor& y_ND,
                                        const at::Tensor& bias_D, const at::Tensor* out_ND) {
  fused::ColumnPass pass{};
  pass.kind = kind;
  pass.type = kernel_type(x_ND);
  pass.x_ND = const_cast<void*>(address_of(x_ND));  // kind `sum` only reads x
  pass.out_ND = out_ND == nullptr ? nullptr : address_in(*out_ND);
  pass.y_ND = address_of(y_ND);
  pass.bias_D = address_of(bias_D);
  pass.packed = are_packed(x_ND.size(1), {pass.x_ND, pass.out_ND, pass.y_ND, pass.bias_D});
  pass.dim = static_cast<int>(x_ND.size(1));
  pass.rows = x_ND.size(0);
  return pass;
}

/// Adds a tensor to a pass over many tensors and assigns thread blocks to it. \return its index in the pass
template <typename Pass>
std::size_t add_tensor(Pass& pass, std::int64_t elements) {
  const auto n = static_cast<std::size_t>(pass.tensors++);
  pass.elements[n] = elements;
  pass.first_block[n + 1] = pass.first_block[n] + fused::update_blocks(elements);
  return n;
}

}  // namespace fsdp::detail
