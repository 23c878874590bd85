#include "lib/compute/ops/updates/companion.hpp"

#include <ATen/ops/from_blob.h>

#include <memory>

namespace fsdp {
namespace {

struct Pair {
  at::Tensor x, companion;
};

/// Deleter; its address identifies storages that hold a Pair.
void delete_pair(void* context) { delete static_cast<Pair*>(context); }

}  // namespace

at::Tensor with_companion(const at::Tensor& x, const at::Tensor& companion) {
  TORCH_CHECK(x.is_contiguous(), "a tensor with gaps cannot bring another one along");
  auto pair = std::make_unique<Pair>(Pair{x, companion});
  return at::for_blob(x.is_meta() ? nullptr : x.data_ptr(), x.sizes())
      .context(pair.release(), delete_pair)
      .target_device(x.device())
      .options(x.options())
      .make_tensor();
}

at::Tensor companion_of(const at::Tensor& view) {
  if (!view.has_storage()) return {};
  const auto& data = view.storage().data_ptr();
  if (data.get_deleter() != &delete_pair) return {};
  return static_cast<const Pair*>(data.get_context())->companion;
}

}  // namespace fsdp
