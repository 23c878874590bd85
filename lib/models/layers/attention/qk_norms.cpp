#include "lib/models/layers/attention/qk_norms.hpp"

#include <utility>

#include "lib/compute/ops/ops.hpp"

namespace fsdp::detail {

at::Tensor QkNorms::columns_of(const at::Tensor& qkv_NC, const Columns& columns) const {
  const auto width = config_.head_width();
  return qkv_NC.narrow(1, columns.first * width, columns.heads * width);
}

at::Tensor QkNorms::rows_of(const at::Tensor& part_NC) const {
  const auto packed = part_NC.contiguous();
  return config_.traits.head_norm == HeadNorm::per_head ? packed.view({-1, config_.head_width()}) : packed;
}

void QkNorms::forward(LayerParams p, at::Tensor& qkv_NC, HeadNormState* keep) const {
  const auto kind = rms_norm_of(config_);
  const auto norm = [&](const Columns& columns, const at::Tensor& gamma, NormResult* kept) {
    const auto part = columns_of(qkv_NC, columns);
    auto result = ops_.add_rms_norm(rows_of(part), {}, {}, gamma, kind);
    part.copy_(result.out_ND.view(part.sizes()));
    if (kept == nullptr) return;
    result.out_ND.reset();
    *kept = std::move(result);
  };
  norm(queries(), at_place(p, q_), keep == nullptr ? nullptr : &keep->q);
  norm(keys(), at_place(p, k_), keep == nullptr ? nullptr : &keep->k);
}

void QkNorms::backward(LayerParams p, LayerGrads g, at::Tensor& grad_qkv_NC, const HeadNormState& state) const {
  const auto norm = [&](const Columns& columns, const at::Tensor& gamma, GradSlot* grad_gamma,
                        const NormResult& saved) {
    const auto part = columns_of(grad_qkv_NC, columns);
    const auto grad = rows_of(part);
    const auto result = ops_.rms_norm_backward({grad, {}, saved.sum_ND, saved, gamma}, {grad_gamma, nullptr, nullptr});
    part.copy_(result.view(part.sizes()));
  };
  norm(queries(), at_place(p, q_), at_place(g, q_), state.q);
  norm(keys(), at_place(p, k_), at_place(g, k_), state.k);
}

}  // namespace fsdp::detail
