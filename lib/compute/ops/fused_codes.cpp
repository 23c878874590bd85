// NF4 and fp8 by fused kernels.
#include <ATen/ops/empty.h>

#include <utility>

#include "lib/compute/ops/fp8.hpp"
#include "lib/compute/ops/fused_args.hpp"
#include "lib/compute/ops/fused_ops.hpp"

namespace fsdp {

using namespace detail;

namespace {

/// A pass with the sizes and the address of x.
fused::Fp8 fp8_pass_of(const at::Tensor& x_RC) {
  fused::Fp8 pass{};
  pass.type = fused_type(x_RC);
  pass.x_RC = address_of(x_RC);
  pass.stride = x_RC.stride(0);
  pass.rows = x_RC.size(0);
  pass.padded_rows = fp8_padded(pass.rows);
  pass.columns = static_cast<int>(x_RC.size(1));
  pass.packed = are_packed(pass.stride, {pass.x_RC});
  return pass;
}

}  // namespace

void FusedOps::dequantize_into(at::Tensor& out_OI, const Nf4Matrix& m) const {
  const auto* codes = address_of(m.codes_S);
  if (!takes({&out_OI}) || !are_packed(8, {address_of(out_OI)}) || reinterpret_cast<std::uintptr_t>(codes) % 4 != 0)
    return AtenOps::dequantize_into(out_OI, m);
  fused::Nf4 pass{};
  pass.type = fused_type(out_OI);
  pass.out = address_in(out_OI);
  pass.packed = static_cast<const std::uint8_t*>(codes);
  pass.elements = out_OI.numel();
  if (m.nested_absmax.defined()) {
    pass.codes = static_cast<const std::uint8_t*>(address_of(m.absmax_S));
    pass.nested = floats_of(m.nested_absmax);
    pass.offset = floats_of(m.nested_offset);
  } else {
    pass.absmax = floats_of(m.absmax_S);
  }
  kernels_->nf4(pass);
}

bool FusedOps::takes_fp8(const at::Tensor& x_RC) const {
  return kernels_ != nullptr && has_fused_type(x_RC) && !is_on_host(x_RC) && x_RC.stride(1) == 1 && x_RC.numel() > 0 &&
         x_RC.size(1) % kFp8Multiple == 0;
}

at::Tensor FusedOps::fp8_largest(const at::Tensor& x_RC) const {
  if (!takes_fp8(x_RC)) return AtenOps::fp8_largest(x_RC);
  auto pass = fp8_pass_of(x_RC);
  pass.blocks = static_cast<int>(fused::fp8_blocks(pass.rows));
  auto largest = at::empty({pass.blocks}, x_RC.options().dtype(at::kFloat));
  pass.largest = floats_in(largest);
  kernels_->fp8_largest(pass);
  return largest;
}

Fp8Matrix FusedOps::fp8_cast(const at::Tensor& x_RC, const at::Tensor& largest, Fp8Format format, Fp8Sides sides,
                             Fp8Matrix made) const {
  if (!takes_fp8(x_RC) || !largest.is_contiguous())
    return AtenOps::fp8_cast(x_RC, largest, format, sides, std::move(made));
  auto pass = fp8_pass_of(x_RC);
  pass.blocks = static_cast<int>(largest.numel());
  pass.largest = const_cast<float*>(floats_of(largest));  // read only
  pass.e5m2 = format == Fp8Format::e5m2;
  const auto codes = x_RC.options().dtype(fp8_type(format));
  make_room(made, x_RC, codes, sides);
  pass.inverse = floats_in(made.inverse);
  if (sides != Fp8Sides::columns) pass.rows_RC = static_cast<std::uint8_t*>(address_in(made.rows_RC));
  if (sides != Fp8Sides::rows) pass.columns_CR = static_cast<std::uint8_t*>(address_in(made.columns_CR));
  kernels_->fp8_cast(pass);
  return made;
}

at::Tensor FusedOps::fp8_columns(const at::Tensor& rows_RC) const {
  const auto rows = rows_RC.size(0), columns = rows_RC.size(1);
  if (kernels_ == nullptr || is_on_host(rows_RC) || rows_RC.numel() == 0 || rows % kFp8Multiple != 0 ||
      columns % kFp8Multiple != 0 || reinterpret_cast<std::uintptr_t>(address_of(rows_RC)) % 16 != 0)
    return AtenOps::fp8_columns(rows_RC);
  auto columns_CR = at::empty({columns, rows}, rows_RC.options());
  kernels_->fp8_transpose({static_cast<const std::uint8_t*>(address_of(rows_RC)),
                           static_cast<std::uint8_t*>(address_in(columns_CR)), rows, columns});
  return columns_CR;
}

}  // namespace fsdp
