#include "lib/compute/ops/cpu_ops.hpp"

#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "lib/compute/ops/products/gemm.hpp"
#include "lib/compute/ops/products/wide_product.hpp"
#include "lib/compute/ops/row_loops.hpp"

namespace fsdp {

using namespace detail;

const Ops& host_ops() {
  static const CpuOps ops;
  return ops;
}

std::string CpuOps::gemm_description(at::ScalarType dtype) const { return host_gemm_description(dtype); }

void CpuOps::product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) const {
  host_product(out, a, b, add);
}

at::Tensor CpuOps::blended_product(const at::Tensor& x, double beta, const at::Tensor& a, const at::Tensor& b,
                                   double alpha) const {
  constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 20;  // elements that are upcast at a time
  if (!is_upcast(x.scalar_type())) return Ops::blended_product(x, beta, a, b, alpha);
  auto out = at::empty_like(x);
  const auto wide_a = a.to(at::kFloat);
  const auto step = std::max<std::int64_t>(1, kElementsAtOnce / std::max<std::int64_t>(1, x.size(0)));
  for (std::int64_t column = 0; column < x.size(1); column += step) {
    const auto n = std::min(step, x.size(1) - column);
    const auto part = linear_backward(wide_a, b.narrow(1, column, n).to(at::kFloat));
    out.narrow(1, column, n).copy_(part.mul_(alpha).add_(x.narrow(1, column, n).to(at::kFloat), beta));
  }
  return out;
}

void CpuOps::add_converted(at::Tensor& to, const at::Tensor& from) const {
  if (to.scalar_type() != at::kFloat || from.element_size() != 2) {
    to.add_(from);
    return;
  }
  // ATen would first allocate a float32 copy of `from`, as large as the parameter.
  launch(to.numel(), 32768, [&](std::int64_t begin, std::int64_t end) {
    cpu_->upcast_add(kernel_type(from), to.data_ptr<float>(), from.const_data_ptr(), begin, end);
  });
}

}  // namespace fsdp
