#pragma once
// 16-bit weights that are kept in float32 as well, for processors that widen products (wide_product.hpp): a panel of
// them then is read where it lies instead of being widened in every product.
#include <ATen/core/Tensor.h>

namespace fsdp {

/// The memory of `half` under a storage that remembers `wide`, and keeps both alive.
/// \param half, wide  dense, of one shape; 16 bits and float32. On a device without memory (meta) half itself comes
/// back
at::Tensor with_wide_copy(const at::Tensor& half, const at::Tensor& wide);

/// What of the float32 copy a view of such a tensor covers: its sizes and strides. Undefined where there is none.
at::Tensor wide_copy_of(const at::Tensor& view);

}  // namespace fsdp
