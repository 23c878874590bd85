// Products with low-rank adapters.
#include <ATen/ops/empty.h>

#include <algorithm>

#include "lib/compute/ops/ops.hpp"
#include "lib/compute/tensor/memory_scope.hpp"

namespace fsdp {

at::Tensor Ops::lora_down(const at::Tensor& x_NI, const at::Tensor& m_IR, double scale) const {
  const auto wide_NI = x_NI.to(at::kFloat);
  auto out_NR = at::empty({x_NI.size(0), m_IR.size(1)}, wide_NI.options());
  product(out_NR, wide_NI, m_IR, false);
  return out_NR.mul_(scale);
}

void Ops::lora_up(at::Tensor& out_NO, const at::Tensor& h_NR, const at::Tensor& m_RO) const {
  if (out_NO.scalar_type() == at::kFloat) return product(out_NO, h_NR, m_RO, true);
  const MemoryScope scope(MemoryCategory::workspace);
  auto update_NO = at::empty(out_NO.sizes(), h_NR.options());
  product(update_NO, h_NR, m_RO, false);
  add_converted(out_NO, update_NO);
}

at::Tensor Ops::lora_row_norms(const at::Tensor& weight_OI, const at::Tensor& b_OR, const at::Tensor& a_RI,
                               double scale) const {
  constexpr std::int64_t kRows = 1024;
  const MemoryScope scope(MemoryCategory::workspace);
  const auto rows = weight_OI.size(0);
  auto norms_O = at::empty({rows}, b_OR.options());
  const auto scaled_OR = b_OR.mul(scale);
  repeat((rows + kRows - 1) / kRows, [&](std::int64_t chunk) {
    const auto first = chunk * kRows, count = std::min(kRows, rows - first);
    auto sum = weight_OI.narrow(0, first, count).to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    product(sum, scaled_OR.narrow(0, first, count), a_RI, true);
    norms_O.narrow(0, first, count).copy_(sum.square_().sum(1).sqrt_());
  });
  return norms_O;
}

}  // namespace fsdp
