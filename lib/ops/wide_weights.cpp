#include "lib/ops/wide_weights.hpp"

#include <ATen/ops/from_blob.h>

#include <memory>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

struct Pair {
  at::Tensor half, wide;
};

/// Its address tells storages that have a Pair from all others.
void delete_pair(void* context) { delete static_cast<Pair*>(context); }

}  // namespace

at::Tensor with_wide_copy(const at::Tensor& half, const at::Tensor& wide) {
  if (half.is_meta()) return half;
  if (!half.is_contiguous() || !wide.is_contiguous() || half.sizes() != wide.sizes() || half.element_size() != 2 ||
      wide.scalar_type() != at::kFloat) {
    throw RuntimeFailure("a float32 copy of weights has another shape or type than it should");
  }
  auto pair = std::make_unique<Pair>(Pair{half, wide});
  return at::for_blob(half.data_ptr(), half.sizes())
      .context(pair.release(), delete_pair)
      .options(half.options())
      .make_tensor();
}

at::Tensor wide_copy_of(const at::Tensor& view) {
  if (!view.has_storage()) return {};
  const auto& data = view.storage().data_ptr();
  if (data.get_deleter() != &delete_pair) return {};
  const auto& wide = static_cast<const Pair*>(data.get_context())->wide;
  return wide.as_strided(view.sizes(), view.strides(), view.storage_offset());
}

}  // namespace fsdp
