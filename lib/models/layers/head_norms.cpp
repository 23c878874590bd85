#include "lib/models/layers/head_norms.hpp"

#include "lib/models/layers/decoder.hpp"

namespace fsdp {

at::Tensor HeadNorms::columns_of(const at::Tensor& qkv_NC, const Columns& columns) const {
  const auto width = config_.head_width();
  return qkv_NC.narrow(1, columns.first * width, columns.heads * width);
}

at::Tensor HeadNorms::rows_of(const at::Tensor& part_NC) const {
  const auto packed = part_NC.contiguous();
  return config_.traits.head_norm == HeadNorm::per_head ? packed.view({-1, config_.head_width()}) : packed;
}

void HeadNorms::forward(at::Tensor& qkv_NC, const at::Tensor& gamma_q, const at::Tensor& gamma_k,
                        HeadNormState* keep) const {
  const auto kind = detail::rms_norm_of(config_);
  const auto norm = [&](const Columns& columns, const at::Tensor& gamma, NormResult* kept) {
    const auto part = columns_of(qkv_NC, columns);
    auto result = ops_.add_rms_norm(rows_of(part), {}, {}, gamma, kind);
    part.copy_(result.out_ND.view(part.sizes()));
    if (kept == nullptr) return;
    result.out_ND.reset();
    *kept = std::move(result);
  };
  norm(queries(), gamma_q, keep == nullptr ? nullptr : &keep->q);
  norm(keys(), gamma_k, keep == nullptr ? nullptr : &keep->k);
}

void HeadNorms::backward(at::Tensor& grad_qkv_NC, const at::Tensor& gamma_q, const at::Tensor& gamma_k,
                         GradSlot* grad_gamma_q, GradSlot* grad_gamma_k, const HeadNormState& state) const {
  const auto norm = [&](const Columns& columns, const at::Tensor& gamma, GradSlot* grad_gamma,
                        const NormResult& saved) {
    const auto part = columns_of(grad_qkv_NC, columns);
    const auto grad = rows_of(part);
    const auto result = ops_.rms_norm_backward({grad, {}, saved.sum_ND, saved, gamma}, {grad_gamma, nullptr, nullptr});
    part.copy_(result.view(part.sizes()));
  };
  norm(queries(), gamma_q, grad_gamma_q, state.q);
  norm(keys(), gamma_k, grad_gamma_k, state.k);
}

}  // namespace fsdp
