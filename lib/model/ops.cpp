#include "lib/model/ops.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <vector>

#include "lib/kernels/kernels.hpp"
#include "lib/model/row_loops.hpp"
#include "lib/model/simulated_ops.hpp"
#include "lib/tensor/gemm.hpp"

namespace fsdp::ops {

using namespace detail;

namespace {

thread_local bool reference_only = false;  // tests compare the two implementations; no other use

}  // namespace

ReferenceScope::ReferenceScope() : previous_(reference_only) { reference_only = true; }
ReferenceScope::~ReferenceScope() { reference_only = previous_; }

bool detail::use_kernels(const at::Tensor& x) { return runs_on_host(x.device()) && !reference_only; }

at::Tensor embed(const at::Tensor& token_VD, const at::Tensor& position_PD, const at::Tensor& ids_N,
                 std::int64_t row_length, std::int64_t first_position) {
  const auto n = ids_N.size(0);
  const auto dim = token_VD.size(1);
  if (use_kernels(token_VD)) {
    auto out_ND = at::empty({n, dim}, token_VD.options());
    const kernels::EmbedArgs args{out_ND.data_ptr(),
                                  token_VD.const_data_ptr(),
                                  data_or_null(position_PD),
                                  ids_N.const_data_ptr<std::int32_t>(),
                                  row_length,
                                  first_position,
                                  dim};
    for_rows(n, dim, [&](auto b, auto e) { kernels::table().embed(type_of(token_VD), args, b, e); });
    return out_ND;
  }
  if (simulating()) return detail::simulated_embed(token_VD, position_PD.defined(), n);
  if (!position_PD.defined()) return token_VD.index_select(0, ids_N);
  const auto positions = at::arange(n, ids_N.options().dtype(at::kLong)).remainder(row_length).add_(first_position);
  return token_VD.index_select(0, ids_N).add_(position_PD.index_select(0, positions));
}

void embed_backward(at::Tensor& grad_token_VD, at::Tensor* grad_position_PD, const at::Tensor& grad_ND,
                    const at::Tensor& ids_N, std::int64_t row_length) {
  const auto n = ids_N.size(0);
  const auto dim = grad_ND.size(1);
  if (use_kernels(grad_ND)) {
    // Rows are added one after the other (several tokens share an id), threads split the columns' work per row instead.
    const auto* ids = ids_N.const_data_ptr<std::int32_t>();
    // Kernels add into float32 or into the type they read.
    const auto wire = grad_token_VD.scalar_type();
    const auto values_ND = wire == at::kFloat ? grad_ND : grad_ND.to(wire);
    const auto type = type_of(values_ND);
    const auto add_row = [&](at::Tensor& to, std::int64_t row, std::int64_t from) {
      auto* target = static_cast<std::byte*>(to.data_ptr()) + row * dim * to.element_size();
      const auto* source =
          static_cast<const std::byte*>(values_ND.const_data_ptr()) + from * dim * values_ND.element_size();
      if (to.scalar_type() == at::kFloat) {
        kernels::table().upcast_add(type, reinterpret_cast<float*>(target), source, 0, dim);
      } else {
        kernels::table().add_bias(type, target, source, nullptr, dim, 0, 1);
      }
    };
    for (std::int64_t t = 0; t < n && !simulating(); ++t) {
      add_row(grad_token_VD, ids[t], t);
      if (grad_position_PD != nullptr) add_row(*grad_position_PD, t % row_length, t);
    }
    return;
  }
  grad_token_VD.index_add_(0, ids_N, grad_ND.to(grad_token_VD.scalar_type()));
  if (grad_position_PD == nullptr) return;
  const auto positions = at::arange(n, ids_N.options().dtype(at::kLong)).remainder(row_length);
  grad_position_PD->index_add_(0, positions, grad_ND.to(grad_position_PD->scalar_type()));
}

NormResult add_layer_norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D,
                          const at::Tensor& gamma_D, const at::Tensor& beta_D, double eps) {
  const auto n = x_ND.size(0);
  const auto dim = x_ND.size(1);
  NormResult result;
  result.eps = eps;
  if (use_kernels(x_ND)) {
    result.sum_ND = y_ND.defined() ? at::empty_like(x_ND) : x_ND;
    result.out_ND = at::empty_like(x_ND);
    result.mean_N = at::empty({n}, x_ND.options().dtype(at::kFloat));
    result.rstd_N = at::empty({n}, x_ND.options().dtype(at::kFloat));
    const kernels::NormArgs args{result.sum_ND.data_ptr(),
                                 result.out_ND.data_ptr(),
                                 result.mean_N.data_ptr<float>(),
                                 result.rstd_N.data_ptr<float>(),
                                 x_ND.const_data_ptr(),
                                 data_or_null(y_ND),
                                 data_or_null(y_bias_D),
                                 gamma_D.const_data_ptr(),
                                 beta_D.const_data_ptr(),
                                 eps,
                                 dim};
    for_rows(n, dim, [&](auto b, auto e) { kernels::table().layer_norm(type_of(x_ND), args, b, e); });
    return result;
  }
  result.sum_ND = x_ND;
  if (y_ND.defined()) result.sum_ND = y_bias_D.defined() ? x_ND + (y_ND + y_bias_D) : x_ND + y_ND;
  if (simulating()) {
    detail::simulated_layer_norm(result);
    return result;
  }
  auto [out, mean, rstd] = at::native_layer_norm(result.sum_ND, {dim}, gamma_D, beta_D, eps);
  result.out_ND = out;
  result.mean_N = mean.reshape({n}).to(at::kFloat);
  result.rstd_N = rstd.reshape({n}).to(at::kFloat);
  return result;
}

at::Tensor layer_norm_backward(const NormBackward& norm, const NormGrads& grads, const NormAgain* again) {
  const auto& grad_ND = norm.grad_ND;
  const auto& residual_ND = norm.residual_ND;
  const auto& x_ND = norm.x_ND;
  const auto& saved = norm.saved;
  const auto& gamma_D = norm.gamma_D;
  const auto n = x_ND.size(0);
  const auto dim = x_ND.size(1);
  if (use_kernels(x_ND)) {
    auto out_ND = at::empty_like(x_ND);
    kernels::NormBackwardArgs args{out_ND.data_ptr(),
                                   grad_ND.const_data_ptr(),
                                   data_or_null(residual_ND),
                                   x_ND.const_data_ptr(),
                                   saved.mean_N.const_data_ptr<float>(),
                                   saved.rstd_N.const_data_ptr<float>(),
                                   gamma_D.const_data_ptr(),
                                   nullptr,
                                   nullptr,
                                   nullptr,
                                   dim,
                                   nullptr,
                                   nullptr};
    if (again != nullptr) {
      again->out_ND = at::empty_like(x_ND);
      args.recomputed_TD = again->out_ND.data_ptr();
      args.beta_D = again->beta_D.const_data_ptr();
    }
    std::array<float*, 3> columns{grads.gamma_D.data_ptr<float>(), grads.beta_D.data_ptr<float>(),
                                  grads.y_bias_D == nullptr ? nullptr : grads.y_bias_D->data_ptr<float>()};
    for_rows_with_columns(n, columns, dim, [&](std::int64_t b, std::int64_t e, const std::array<float*, 3>& mine) {
      auto part = args;
      part.grad_gamma_D = mine[0];
      part.grad_beta_D = mine[1];
      part.sum_grad_x_D = mine[2];
      kernels::table().layer_norm_backward(type_of(x_ND), part, b, e);
    });
    return out_ND;
  }
  if (simulating()) return detail::simulated_layer_norm_backward(x_ND, grads, again);
  const auto statistics = [&](const at::Tensor& s) {
    // ATen keeps the statistics of reduced-precision CPU inputs in the input's own type.
    return s.reshape({n, 1}).to(x_ND.device().is_cpu() ? x_ND.scalar_type() : at::kFloat);
  };
  auto [dx, dgamma, dbeta] = at::native_layer_norm_backward(
      grad_ND, x_ND, {dim}, statistics(saved.mean_N), statistics(saved.rstd_N), gamma_D, gamma_D, {true, true, true});
  if (again != nullptr)
    again->out_ND = std::get<0>(at::native_layer_norm(x_ND, {dim}, gamma_D, again->beta_D, saved.eps));
  grads.gamma_D.add_(dgamma);
  grads.beta_D.add_(dbeta);
  if (residual_ND.defined()) dx.add_(residual_ND);
  if (grads.y_bias_D != nullptr) grads.y_bias_D->add_(column_sums(dx));
  return dx;
}

at::Tensor bias_gelu(at::Tensor& pre_NF, const at::Tensor& bias_F) {
  if (use_kernels(pre_NF)) {
    auto out_NF = at::empty_like(pre_NF);
    const auto dim = pre_NF.size(1);
    const kernels::GeluArgs args{pre_NF.data_ptr(), out_NF.data_ptr(), data_or_null(bias_F), dim};
    for_rows(pre_NF.size(0), dim, [&](auto b, auto e) { kernels::table().bias_gelu(type_of(pre_NF), args, b, e); });
    return out_NF;
  }
  pre_NF.add_(bias_F);
  return at::gelu(pre_NF, "tanh");
}

void bias_gelu_backward(at::Tensor& grad_NF, const at::Tensor& pre_NF, at::Tensor& grad_bias_F,
                        at::Tensor* recomputed_NF) {
  const auto dim = pre_NF.size(1);
  if (recomputed_NF != nullptr && use_kernels(pre_NF)) *recomputed_NF = at::empty_like(pre_NF);
  if (use_kernels(pre_NF)) {
    const std::array<float*, 1> columns{grad_bias_F.data_ptr<float>()};
    for_rows_with_columns(pre_NF.size(0), columns, dim, [&](std::int64_t b, std::int64_t e, const auto& mine) {
      const kernels::GeluBackwardArgs args{grad_NF.data_ptr(),
                                           recomputed_NF == nullptr ? nullptr : recomputed_NF->data_ptr(),
                                           pre_NF.const_data_ptr(), mine[0], dim};
      kernels::table().bias_gelu_backward(type_of(pre_NF), args, b, e);
    });
    return;
  }
  if (recomputed_NF != nullptr) *recomputed_NF = at::gelu(pre_NF, "tanh");
  grad_NF.copy_(at::gelu_backward(grad_NF, pre_NF, "tanh"));
  grad_bias_F.add_(column_sums(grad_NF));
}

void add_bias(at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& bias_D) {
  const auto dim = x_ND.size(1);
  if (use_kernels(x_ND)) {
    for_rows(x_ND.size(0), dim, [&](auto b, auto e) {
      kernels::table().add_bias(type_of(x_ND), x_ND.data_ptr(), data_or_null(y_ND), data_or_null(bias_D), dim, b, e);
    });
    return;
  }
  if (y_ND.defined() && bias_D.defined()) {
    x_ND.add_(y_ND + bias_D);
  } else {
    x_ND.add_(y_ND.defined() ? y_ND : bias_D);
  }
}

void add_column_sums(const at::Tensor& x_ND, at::Tensor& sum_D) {
  const auto dim = x_ND.size(1);
  if (use_kernels(x_ND)) {
    const std::array<float*, 1> columns{sum_D.data_ptr<float>()};
    for_rows_with_columns(x_ND.size(0), columns, dim, [&](std::int64_t b, std::int64_t e, const auto& mine) {
      kernels::table().column_sum(type_of(x_ND), x_ND.const_data_ptr(), mine[0], dim, b, e);
    });
    return;
  }
  sum_D.add_(column_sums(x_ND));
}

void dropout(at::Tensor& x_ND, const at::Tensor& keys_N, double probability) {
  const auto dim = x_ND.size(1);
  if (simulating_cuda()) {
    detail::simulated_dropout(x_ND);
    return;
  }
  if (!runs_on_host(x_ND.device())) {
    // The mask is made on the host so that it is the same on every device and for every rank layout.
    auto mask = at::empty({x_ND.size(0), dim}, x_ND.options().device(at::kCPU).dtype(at::kFloat)).fill_(1.0);
    dropout(mask, keys_N.to(at::kCPU), probability);
    x_ND.mul_(mask.to(x_ND.options()));
    return;
  }
  const kernels::DropoutArgs args{x_ND.data_ptr(),
                                  reinterpret_cast<const std::uint64_t*>(keys_N.const_data_ptr<std::int64_t>()),
                                  static_cast<float>(probability), dim};
  for_rows(x_ND.size(0), dim, [&](auto b, auto e) { kernels::table().dropout(type_of(x_ND), args, b, e); });
}

LossResult cross_entropy(at::Tensor& logits_NV, const at::Tensor& targets_N, std::int64_t vocab, double grad_scale) {
  const auto n = logits_NV.size(0);
  const auto padded = logits_NV.size(1);
  LossResult result;
  if (use_kernels(logits_NV)) {
    const kernels::CrossEntropyArgs args{
        logits_NV.data_ptr(), targets_N.const_data_ptr<std::int32_t>(), vocab, padded, static_cast<float>(grad_scale),
        grad_scale != 0};
    if (simulating()) return {0.0, n};
    const std::int64_t chunks = std::clamp<std::int64_t>(n, 1, at::get_num_threads());
    std::vector<kernels::LossSum> sums(static_cast<std::size_t>(chunks));
    at::parallel_for(0, chunks, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t c = first; c < last; ++c) {
        sums[static_cast<std::size_t>(c)] =
            kernels::table().cross_entropy(type_of(logits_NV), args, n * c / chunks, n * (c + 1) / chunks);
      }
    });
    for (const auto& sum : sums) {
      result.loss_sum += sum.loss;
      result.tokens += sum.tokens;
    }
    return result;
  }
  const auto real = logits_NV.narrow(1, 0, vocab);
  const auto counts = targets_N.ge(0);
  const auto target = targets_N.clamp_min(0).to(at::kLong).unsqueeze(1);
  auto log_probs = simulating_cuda() ? simulated_log_softmax(real) : at::log_softmax(real, 1, at::kFloat);
  const auto mask = counts.to(at::kFloat);
  const auto loss_sum = (log_probs.gather(1, target).squeeze(1) * mask).sum(at::kDouble);
  result.loss_sum = simulating() ? 0.0 : -loss_sum.item<double>();
  result.tokens = simulating() ? n : counts.sum().item<std::int64_t>();
  if (grad_scale != 0) {
    auto grad = log_probs.exp_();
    grad.scatter_add_(1, target, at::zeros({n, 1}, grad.options()).sub_(1));
    grad.mul_(mask.unsqueeze(1).mul(grad_scale));
    logits_NV.zero_();
    logits_NV.narrow(1, 0, vocab).copy_(grad);
  }
  return result;
}

at::Tensor linear(const at::Tensor& x_ND, const at::Tensor& weight_OD) { return gemm(x_ND, weight_OD.t()); }

}  // namespace fsdp::ops
