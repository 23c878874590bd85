#include "lib/compute/ops/fused_ops.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "lib/base/variables.hpp"
#include "lib/compute/ops/fused_args.hpp"
#include "lib/compute/ops/packed_heads.hpp"
#include "lib/compute/tensor/memory_scope.hpp"

namespace fsdp {

using namespace detail;

bool wants_fused_kernels() { return variable_value("FSDP_CUDA_KERNELS") != "off"; }

FusedOps::FusedOps(at::Device device, std::shared_ptr<const fused::Kernels> kernels)
    : AtenOps(device), kernels_(std::move(kernels)) {}

bool FusedOps::takes(std::initializer_list<const at::Tensor*> tensors) const {
  if (kernels_ == nullptr) return false;
  const auto& first = **tensors.begin();
  return has_fused_type(first) && first.numel() > 0 &&
         std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor* x) {
           return !x->defined() || (x->scalar_type() == first.scalar_type() && x->is_contiguous() && !is_on_host(*x));
         });
}

// --- tokens

at::Tensor FusedOps::embed(const at::Tensor& token_VD, const at::Tensor& position_PD, const at::Tensor& ids_N,
                           TokenPositions place) const {
  if (!takes({&token_VD, &position_PD}) || ids_N.numel() == 0)
    return AtenOps::embed(token_VD, position_PD, ids_N, place);
  const auto n = ids_N.size(0), dim = token_VD.size(1);
  auto out_ND = at::empty({n, dim}, token_VD.options());
  const auto *token = address_of(token_VD), *position = address_of(position_PD);
  auto* out = address_in(out_ND);
  kernels_->embed({fused_type(token_VD), out, token, position, ids_of(ids_N), n, place.row_length, place.first_position,
                   ids_of(place.positions_N), static_cast<int>(dim), are_packed(dim, {out, token, position})});
  return out_ND;
}

void FusedOps::embed_backward(at::Tensor* grad_token_VD, at::Tensor* grad_position_PD, const at::Tensor& grad_ND,
                              const at::Tensor& ids_N, const TokenPositions& place) const {
  if (!takes({&grad_ND})) return AtenOps::embed_backward(grad_token_VD, grad_position_PD, grad_ND, ids_N, place);
  const auto n = grad_ND.size(0), dim = grad_ND.size(1);
  const auto add = [&](at::Tensor* to_VD, const std::int32_t* ids) {
    if (to_VD == nullptr) return;
    const fused::GradTarget to{address_in(*to_VD), fused_type(*to_VD), true};
    kernels_->embed_backward({fused_type(grad_ND), address_of(grad_ND), ids, to, n, place.row_length,
                              static_cast<int>(dim), are_packed(dim, {address_of(grad_ND), to.data})});
  };
  add(grad_token_VD, ids_of(ids_N));
  add(grad_position_PD, ids_of(place.positions_N));
}

void FusedOps::cross_entropy(StepSums& sums, at::Tensor& logits_NV, const Targets& targets, std::int64_t vocab,
                             const GradScale& grad_scale) const {
  if (!takes({&logits_NV})) return AtenOps::cross_entropy(sums, logits_NV, targets, vocab, grad_scale);
  const auto n = logits_NV.size(0), width = logits_NV.size(1);
  const auto pending = sums.on_device(logits_NV.options());
  const auto losses_N = at::empty({n}, logits_NV.options().dtype(at::kFloat));
  auto* logits = address_in(logits_NV);
  kernels_->cross_entropy({fused_type(logits_NV), logits, ids_of(targets.ids_N), floats_of(targets.weights_N),
                           floats_in(losses_N), static_cast<double*>(address_in(pending)),
                           static_cast<float>(grad_scale.value), floats_of(grad_scale.on_device), grad_scale.value != 0,
                           are_packed(width, {logits}), static_cast<int>(vocab), static_cast<int>(width), n});
}

// --- dropout

at::Tensor FusedOps::dropout_keys(const DropoutSeeds& place, std::int64_t rows_per_sample, std::uint64_t step) const {
  if (kernels_ == nullptr) return AtenOps::dropout_keys(place, rows_per_sample, step);
  const MemoryScope scope(MemoryCategory::activations);
  const auto samples_B = to_device(place.sample_keys_B);
  auto keys_N = at::empty({samples_B.size(0) * rows_per_sample}, at::TensorOptions(at::kLong).device(device()));
  if (keys_N.numel() > 0)
    kernels_->dropout_keys({static_cast<const std::int64_t*>(address_of(samples_B)),
                            static_cast<std::int64_t*>(address_in(keys_N)), place.place, step, keys_N.numel(),
                            rows_per_sample});
  return keys_N;
}

void FusedOps::dropout(at::Tensor& x_ND, const at::Tensor& keys_N, double probability) const {
  if (x_ND.numel() == 0) return;
  if (!takes({&x_ND})) return AtenOps::dropout(x_ND, keys_N, probability);
  const auto keys = to_device(keys_N);
  auto pass = column_pass_of(fused::ColumnPassKind::dropout, x_ND, {}, {}, nullptr);
  pass.keys_N = static_cast<const std::int64_t*>(address_of(keys));
  pass.probability = static_cast<float>(probability);
  kernels_->column_pass(pass);
}

at::Tensor FusedOps::dropout_mask(const at::Tensor& keys_N, std::int64_t columns, double probability,
                                  at::ScalarType dtype) const {
  if (kernels_ == nullptr) return AtenOps::dropout_mask(keys_N, columns, probability, dtype);
  auto mask = at::ones({keys_N.size(0), columns}, at::TensorOptions(dtype).device(device()));
  if (!takes({&mask})) return AtenOps::dropout_mask(keys_N, columns, probability, dtype);
  dropout(mask, keys_N, probability);
  return mask;
}

// --- heads

void FusedOps::rope(at::Tensor& x_NC, std::int64_t heads, std::int64_t head_size, const RopeTable& table,
                    const TokenPositions& place, bool inverse) const {
  const bool whole_heads = 2 * table.cos_PH.size(1) == head_size;
  if (kernels_ == nullptr || !has_fused_type(x_NC) || x_NC.numel() == 0 || x_NC.stride(1) != 1 || !whole_heads)
    return AtenOps::rope(x_NC, heads, head_size, table, place, inverse);
  const auto stride = x_NC.stride(0);
  fused::Heads pass{};
  pass.type = fused_type(x_NC);
  pass.to_NC = address_in(x_NC);
  pass.to_stride = stride;
  pass.parts[0] = {pass.to_NC, place.row_length * stride, head_size, stride, static_cast<int>(heads)};
  pass.num_parts = 1;
  pass.rotated_heads = static_cast<int>(heads);
  pass.head_size = static_cast<int>(head_size);
  pass.cos_PH = floats_of(table.cos_PH);
  pass.sin_PH = floats_of(table.sin_PH);
  pass.rows = x_NC.size(0);
  pass.row_length = place.row_length;
  pass.first_position = place.first_position;
  pass.positions_N = ids_of(place.positions_N);
  pass.inverse = inverse;
  pass.packed = stride % 8 == 0 && are_packed(head_size / 2, {pass.to_NC, pass.cos_PH, pass.sin_PH});
  kernels_->heads(pass);
}

at::Tensor FusedOps::pack_heads(std::array<at::Tensor, 3> parts, const AttentionShape& s,
                                const Rotation* rotation) const {
  auto packed_NC = at::empty({s.rows * s.length, s.packed_width()}, parts[0].options());
  const bool turns_whole = rotation == nullptr || 2 * rotation->table.cos_PH.size(1) == s.head_size;
  const bool whole = s.head_size % 2 == 0 && turns_whole && kernels_ != nullptr &&
                     std::all_of(parts.begin(), parts.end(), [](const at::Tensor& x) { return x.stride(3) == 1; });
  if (!whole) {
    for (const auto which : {Part::q, Part::k, Part::v}) {
      auto& part = parts[static_cast<std::size_t>(which)];
      part_of(packed_NC, s, which).copy_(part);
      part.reset();  // frees memory before rope() allocates
    }
    if (rotation != nullptr)
      rope(packed_NC, s.heads + s.key_heads(), s.head_size, rotation->table, rotation->place, true);
    return packed_NC;
  }
  fused::Heads pass{};
  pass.type = fused_type(packed_NC);
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
  pass.rows = s.rows * s.length;
  pass.row_length = s.length;
  pass.inverse = true;
  if (rotation != nullptr) {
    pass.rotated_heads = static_cast<int>(s.heads + s.key_heads());
    pass.cos_PH = floats_of(rotation->table.cos_PH);
    pass.sin_PH = floats_of(rotation->table.sin_PH);
    pass.first_position = rotation->place.first_position;
    pass.positions_N = ids_of(rotation->place.positions_N);
    pass.packed = pass.packed && are_packed(8, {pass.cos_PH, pass.sin_PH});
  }
  kernels_->heads(pass);
  return packed_NC;
}

}  // namespace fsdp
