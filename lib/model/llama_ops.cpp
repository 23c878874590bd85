#include "lib/model/llama_ops.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>

#include <algorithm>

#include "lib/model/row_loops.hpp"
#include "lib/model/simulated_ops.hpp"

namespace fsdp::ops {

using namespace detail;

namespace {

/// Some rows after the other in plain operators: their float32 intermediates are several times as large as what they
/// are made from, and would decide how large a batch a GPU can take.
template <typename Body>
void for_pieces(std::int64_t rows, std::int64_t row_elements, const Body& body) {
  constexpr std::int64_t kElements = std::int64_t{1} << 24;
  const auto piece = std::max<std::int64_t>(1, kElements / std::max<std::int64_t>(1, row_elements));
  for (std::int64_t first = 0; first < rows; first += piece) {
    body(first, std::min(piece, rows - first));
    // The pieces between the first and the last allocate what the first did.
    if (simulating()) first = std::max(first, (rows - 1) / piece * piece - piece);
  }
}

}  // namespace

NormResult add_rms_norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D,
                        const at::Tensor& gamma_D, double eps) {
  const auto n = x_ND.size(0);
  const auto dim = x_ND.size(1);
  NormResult result;
  result.eps = eps;
  if (use_kernels(x_ND)) {
    result.sum_ND = y_ND.defined() ? at::empty_like(x_ND) : x_ND;
    result.out_ND = at::empty_like(x_ND);
    result.rstd_N = at::empty({n}, x_ND.options().dtype(at::kFloat));
    const kernels::RmsNormArgs args{result.sum_ND.data_ptr(),
                                    result.out_ND.data_ptr(),
                                    result.rstd_N.data_ptr<float>(),
                                    x_ND.const_data_ptr(),
                                    data_or_null(y_ND),
                                    data_or_null(y_bias_D),
                                    gamma_D.const_data_ptr(),
                                    eps,
                                    dim};
    for_rows(n, dim, [&](auto b, auto e) { kernels::table().rms_norm(type_of(x_ND), args, b, e); });
    return result;
  }
  result.sum_ND = x_ND;
  if (y_ND.defined()) result.sum_ND = y_bias_D.defined() ? x_ND + (y_ND + y_bias_D) : x_ND + y_ND;
  result.out_ND = at::empty_like(x_ND);
  result.rstd_N = at::empty({n}, x_ND.options().dtype(at::kFloat));
  const auto gamma = gamma_D.to(at::kFloat);
  for_pieces(n, dim, [&](std::int64_t first, std::int64_t rows) {
    const auto wide = result.sum_ND.narrow(0, first, rows).to(at::kFloat);
    const auto rstd = wide.square().mean(at::IntArrayRef{1}, true).add_(eps).rsqrt_();
    result.rstd_N.narrow(0, first, rows).copy_(rstd.reshape({rows}));
    result.out_ND.narrow(0, first, rows).copy_(wide * rstd * gamma);
  });
  return result;
}

at::Tensor rms_norm_backward(const NormBackward& norm, at::Tensor& grad_gamma_D, at::Tensor* grad_y_bias_D,
                             at::Tensor* recomputed_ND) {
  const auto& grad_ND = norm.grad_ND;
  const auto& residual_ND = norm.residual_ND;
  const auto& x_ND = norm.x_ND;
  const auto& saved = norm.saved;
  const auto& gamma_D = norm.gamma_D;
  const auto n = x_ND.size(0);
  const auto dim = x_ND.size(1);
  if (use_kernels(x_ND)) {
    auto out_ND = at::empty_like(x_ND);
    if (recomputed_ND != nullptr) *recomputed_ND = at::empty_like(x_ND);
    const std::array<float*, 2> columns{grad_gamma_D.data_ptr<float>(),
                                        grad_y_bias_D == nullptr ? nullptr : grad_y_bias_D->data_ptr<float>()};
    for_rows_with_columns(n, columns, dim, [&](std::int64_t b, std::int64_t e, const std::array<float*, 2>& mine) {
      const kernels::RmsNormBackwardArgs args{out_ND.data_ptr(),
                                              grad_ND.const_data_ptr(),
                                              data_or_null(residual_ND),
                                              x_ND.const_data_ptr(),
                                              saved.rstd_N.const_data_ptr<float>(),
                                              gamma_D.const_data_ptr(),
                                              mine[0],
                                              mine[1],
                                              recomputed_ND == nullptr ? nullptr : recomputed_ND->data_ptr(),
                                              dim};
      kernels::table().rms_norm_backward(type_of(x_ND), args, b, e);
    });
    return out_ND;
  }
  const auto gamma = gamma_D.to(at::kFloat);
  auto dx_ND = at::empty_like(x_ND);
  if (recomputed_ND != nullptr) *recomputed_ND = at::empty_like(x_ND);
  for_pieces(n, dim, [&](std::int64_t first, std::int64_t rows) {
    const auto part = [&](const at::Tensor& of) { return of.narrow(0, first, rows); };
    const auto rstd = part(saved.rstd_N).reshape({rows, 1});
    const auto normal = part(x_ND).to(at::kFloat) * rstd;
    const auto grad = part(grad_ND).to(at::kFloat);
    grad_gamma_D.add_(column_sums(grad * normal));
    const auto scaled = grad * gamma;
    auto dx = (scaled - normal * (scaled * normal).mean(at::IntArrayRef{1}, true)) * rstd;
    if (residual_ND.defined()) dx.add_(part(residual_ND));
    part(dx_ND).copy_(dx);
    if (recomputed_ND != nullptr) part(*recomputed_ND).copy_(normal * gamma);
  });
  if (grad_y_bias_D != nullptr) grad_y_bias_D->add_(column_sums(dx_ND));
  return dx_ND;
}

at::Tensor swiglu(const at::Tensor& gate_NF, const at::Tensor& up_NF) {
  if (use_kernels(gate_NF)) {
    auto out_NF = at::empty_like(gate_NF);
    const auto dim = gate_NF.size(1);
    const kernels::SwigluArgs args{out_NF.data_ptr(), gate_NF.const_data_ptr(), up_NF.const_data_ptr(), dim};
    for_rows(gate_NF.size(0), dim, [&](auto b, auto e) { kernels::table().swiglu(type_of(gate_NF), args, b, e); });
    return out_NF;
  }
  auto out_NF = at::empty_like(gate_NF);
  for_pieces(gate_NF.size(0), gate_NF.size(1), [&](std::int64_t first, std::int64_t rows) {
    out_NF.narrow(0, first, rows)
        .copy_(at::silu(gate_NF.narrow(0, first, rows).to(at::kFloat)) * up_NF.narrow(0, first, rows));
  });
  return out_NF;
}

void swiglu_backward(at::Tensor& grad_NF, at::Tensor& gate_NF, at::Tensor& up_NF) {
  if (use_kernels(gate_NF)) {
    const auto dim = gate_NF.size(1);
    const kernels::SwigluBackwardArgs args{grad_NF.data_ptr(), gate_NF.data_ptr(), up_NF.data_ptr(), dim};
    for_rows(gate_NF.size(0), dim,
             [&](auto b, auto e) { kernels::table().swiglu_backward(type_of(gate_NF), args, b, e); });
    return;
  }
  for_pieces(gate_NF.size(0), gate_NF.size(1), [&](std::int64_t first, std::int64_t rows) {
    const auto part = [&](const at::Tensor& of) { return of.narrow(0, first, rows); };
    const auto gate = part(gate_NF).to(at::kFloat);
    const auto sigmoid = gate.sigmoid();
    const auto silu = gate * sigmoid;
    const auto grad = part(grad_NF).to(at::kFloat);
    const auto up = part(up_NF).to(at::kFloat);
    // All three before the first is written: in float32 they share memory with what they are made from.
    const auto out = silu * up;
    const auto grad_up = grad * silu;
    const auto grad_gate = grad * up * sigmoid * (gate * (1 - sigmoid) + 1);
    part(grad_NF).copy_(out);
    part(up_NF).copy_(grad_up);
    part(gate_NF).copy_(grad_gate);
  });
}

void rope(at::Tensor& x_NC, std::int64_t heads, std::int64_t head_size, const RopeTable& table, const RopePlace& place,
          bool inverse) {
  const auto n = x_NC.size(0);
  if (use_kernels(x_NC)) {
    const kernels::RopeArgs args{x_NC.data_ptr(),
                                 x_NC.stride(0),
                                 heads,
                                 head_size,
                                 table.cos_PH.const_data_ptr<float>(),
                                 table.sin_PH.const_data_ptr<float>(),
                                 place.row_length,
                                 place.first_position,
                                 inverse};
    for_rows(n, heads * head_size, [&](auto b, auto e) { kernels::table().rope(type_of(x_NC), args, b, e); });
    return;
  }
  const auto positions =
      at::arange(n, x_NC.options().dtype(at::kLong)).remainder(place.row_length).add_(place.first_position);
  const auto pick = [&](const at::Tensor& from_PH) {  // [N, 1, head_size / 2]
    if (simulating()) return at::empty({n, 1, head_size / 2}, from_PH.options());
    return from_PH.index_select(0, positions).unsqueeze(1);
  };
  const auto cosine = pick(table.cos_PH);
  const auto sine = pick(table.sin_PH).mul(inverse ? -1.0 : 1.0);
  auto rotated = x_NC.narrow(1, 0, heads * head_size).unflatten(1, {heads, 2, head_size / 2});
  const auto low = rotated.select(2, 0).to(at::kFloat);
  const auto high = rotated.select(2, 1).to(at::kFloat);
  const auto new_low = low * cosine - high * sine;
  const auto new_high = high * cosine + low * sine;
  rotated.select(2, 0).copy_(new_low);
  rotated.select(2, 1).copy_(new_high);
}

}  // namespace fsdp::ops
