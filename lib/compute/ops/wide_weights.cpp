#include "lib/compute/ops/wide_weights.hpp"

#include "lib/base/error.hpp"
#include "lib/compute/ops/companion.hpp"

namespace fsdp {

at::Tensor with_wide_copy(const at::Tensor& half, const at::Tensor& wide) {
  if (half.is_meta()) return half;
  if (!half.is_contiguous() || !wide.is_contiguous() || half.sizes() != wide.sizes() || half.element_size() != 2 ||
      wide.scalar_type() != at::kFloat) {
    throw RuntimeFailure("a float32 copy of weights has another shape or type than it should");
  }
  return with_companion(half, wide);
}

at::Tensor wide_copy_of(const at::Tensor& view) {
  if (view.element_size() != 2) return {};
  const auto wide = companion_of(view);
  return wide.defined() ? wide.as_strided(view.sizes(), view.strides(), view.storage_offset()) : wide;
}

}  // namespace fsdp
