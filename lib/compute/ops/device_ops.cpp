#include "lib/compute/ops/device_ops.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "lib/base/process/variables.hpp"
#include "lib/base/types/index.hpp"
#include "lib/compute/ops/attention/packed_heads.hpp"
#include "lib/compute/ops/fused_args.hpp"
#include "lib/compute/ops/products/gemm.hpp"

namespace fsdp {

using namespace detail;

bool wants_fused_kernels() { return variable_value("FSDP_CUDA_KERNELS") != "off"; }

void DeviceOps::product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) const {
  aten_product(out, a, b, add);
}

at::Tensor DeviceOps::pack_heads(std::array<at::Tensor, 3> parts, const AttentionShape& s,
                                 const Rotation* rotation) const {
  auto packed_NC = at::empty({s.rows * s.query_length, s.packed_width()}, parts[0].options());
  const bool turns_whole = rotation == nullptr || 2 * rotation->table.cos_PH.size(1) == s.head_size;
  const bool whole = s.head_size % 2 == 0 && turns_whole && has_kernels() &&
                     std::all_of(parts.begin(), parts.end(), [](const at::Tensor& x) { return x.stride(3) == 1; });
  if (!whole) {
    for (const auto which : {Part::q, Part::k, Part::v}) {
      auto& part = element(parts, which);
      part_of(packed_NC, s, which).copy_(part);
      part.reset();  // frees memory before rope() allocates
    }
    if (rotation != nullptr)
      rope(packed_NC, s.heads + s.key_heads(), s.head_size, rotation->table, rotation->place, true);
    return packed_NC;
  }
  fused::Heads pass{};
  pass.type = kernel_type(packed_NC);
  pass.to_NC = address_in(packed_NC);
  pass.to_stride = s.packed_width();
  pass.packed = are_packed(s.head_size / 2, {pass.to_NC});
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& x = parts[i];
    const auto heads = static_cast<int>(i == 0 ? s.heads : s.key_heads());
    pass.parts[i] = {address_of(x), x.stride(0), x.stride(1), x.stride(2), heads};
    pass.packed = pass.packed && are_packed(x.stride(0), {address_of(x)}) && are_packed(x.stride(1), {}) &&
                  are_packed(x.stride(2), {});
  }
  pass.num_parts = 3;
  pass.head_size = static_cast<int>(s.head_size);
  pass.rows = s.rows * s.query_length;
  pass.row_length = s.query_length;
  pass.inverse = true;
  if (rotation != nullptr) {
    pass.rotated_heads = static_cast<int>(s.heads + s.key_heads());
    pass.cos_PH = floats_of(rotation->table.cos_PH);
    pass.sin_PH = floats_of(rotation->table.sin_PH);
    pass.first_position = rotation->place.first_position;
    pass.positions_N = ids_of(rotation->place.positions_N);
    pass.packed = pass.packed && are_packed(8, {pass.cos_PH, pass.sin_PH});
  }
  fused_->heads(pass);
  return packed_NC;
}

}  // namespace fsdp
