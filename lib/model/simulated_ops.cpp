#include "lib/model/simulated_ops.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "lib/tensor/memory_recorder.hpp"

namespace fsdp::ops::detail {

at::Tensor simulated_embed(const at::Tensor& token_VD, bool positions, std::int64_t tokens) {
  const auto rows = [&] { return at::empty({tokens, token_VD.size(1)}, token_VD.options()); };
  if (!positions) return rows();
  const auto places = at::empty({tokens}, token_VD.options().dtype(at::kLong));
  const auto remainder = at::empty_like(places);
  auto out = rows();
  const auto looked_up = rows();
  return out;
}

void simulated_layer_norm(NormResult& result) {
  const auto& x_ND = result.sum_ND;
  const auto statistics = x_ND.options().dtype(at::kFloat);
  result.out_ND = at::empty_like(x_ND);
  result.mean_N = at::empty({x_ND.size(0)}, statistics);
  result.rstd_N = at::empty({x_ND.size(0)}, statistics);
}

at::Tensor simulated_layer_norm_backward(const at::Tensor& x_ND, const NormGrads& grads, const NormAgain* again) {
  auto dx = at::empty_like(x_ND);
  // Sums over rows: the CUDA kernel adds up blocks of rows in float32 first.
  const auto dim = x_ND.size(1);
  const auto dgamma = at::empty({dim}, x_ND.options()), dbeta = at::empty({dim}, x_ND.options());
  if (again != nullptr) {
    NormResult once_more;
    once_more.sum_ND = x_ND;
    simulated_layer_norm(once_more);
    again->out_ND = once_more.out_ND;
  }
  if (grads.y_bias_D != nullptr) grads.y_bias_D->add_(dx.sum(at::IntArrayRef{0}, false, at::kFloat));
  return dx;
}

void simulated_dropout(const at::Tensor& x_ND) {
  // Made on the host in float32, narrowed there, and copied.
  const auto on_device = at::empty_like(x_ND);
  const MemoryScope scope(MemoryCategory::activations, true);
  const auto mask = at::empty(x_ND.sizes(), x_ND.options().dtype(at::kFloat));
  const auto narrowed = at::empty_like(x_ND);
}

}  // namespace fsdp::ops::detail
