#include "lib/tensor/stage.hpp"

#include "lib/tensor/gemm.hpp"

namespace fsdp {

void GradSlot::add_product(const at::Tensor& a, const at::Tensor& b) {
  if (grad.scalar_type() != a.scalar_type()) {
    const auto product = gemm(a, b);
    written ? grad.add_(product) : grad.copy_(product);
  } else if (written) {
    gemm_add(grad, a, b);
  } else {
    gemm_out(grad, a, b);
  }
  written = true;
}

void GradSlot::add(const at::Tensor& values) {
  const auto shaped = values.view(grad.sizes());
  written ? grad.add_(shaped) : grad.copy_(shaped);
  written = true;
}

void GradSlot::finish() {
  if (!written) grad.zero_();
  written = true;
}

}  // namespace fsdp
