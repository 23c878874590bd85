#include "lib/tensor/layer.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>

#include "lib/kernels/kernels.hpp"
#include "lib/tensor/gemm.hpp"
#include "lib/tensor/memory_recorder.hpp"
#include "lib/tensor/scalar_type.hpp"

namespace fsdp {
namespace {

/// to (+)= from, elements of another dtype.
void add_converted(at::Tensor& to, const at::Tensor& from, bool accumulate) {
  if (!accumulate) {
    to.copy_(from);
    return;
  }
  const bool on_host = runs_on_host(to.device());
  const bool widens = to.scalar_type() == at::kFloat && from.element_size() == 2;
  if (on_host && widens) {
    // ATen would first make a float32 copy of `from`, as large as the parameter.
    if (simulating()) return;
    const auto type = kernel_type(from.scalar_type());
    at::parallel_for(0, to.numel(), 32768, [&](std::int64_t begin, std::int64_t end) {
      kernels::table().upcast_add(type, to.data_ptr<float>(), from.const_data_ptr(), begin, end);
    });
    return;
  }
  if (on_host && simulating() && to.scalar_type() != from.scalar_type()) {
    // ATen's CPU operators compute in the common dtype: on a copy of what is read, and one of what is written.
    const auto wide = to.options().dtype(at::kFloat);
    const auto read = at::empty_like(to, wide), written = at::empty_like(to, wide);
    return;
  }
  to.add_(from);
}

}  // namespace

void GradSlot::add_product(const at::Tensor& a, const at::Tensor& b) {
  if (grad.scalar_type() != a.scalar_type()) {
    const auto product = gemm(a, b);
    add_converted(grad, product, written);
  } else if (written) {
    gemm_add(grad, a, b);
  } else {
    gemm_out(grad, a, b);
  }
  written = true;
}

void GradSlot::add(const at::Tensor& values) {
  const auto shaped = values.view(grad.sizes());
  add_converted(grad, shaped, written);
  written = true;
}

void GradSlot::finish() {
  if (!written) grad.zero_();
  written = true;
}

}  // namespace fsdp
