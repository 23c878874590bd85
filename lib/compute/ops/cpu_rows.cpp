// Passes over rows: norms, activations, biases, rotary positions.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <array>
#include <vector>

#include "lib/compute/ops/cpu_ops.hpp"
#include "lib/compute/ops/row_loops.hpp"

namespace fsdp {

using namespace detail;

namespace {

/// Allocates the results of a norm.
NormResult norm_result(const at::Tensor& x_ND, const at::Tensor& y_ND, double eps, bool with_mean) {
  const auto statistics = x_ND.options().dtype(at::kFloat);
  NormResult result;
  result.eps = eps;
  result.sum_ND = y_ND.defined() ? at::empty_like(x_ND) : x_ND;
  result.out_ND = at::empty_like(x_ND);
  if (with_mean) result.mean_N = at::empty({x_ND.size(0)}, statistics);
  result.rstd_N = at::empty({x_ND.size(0)}, statistics);
  return result;
}

/// Row stride of both tensors, in elements.
std::int64_t leading_of(const at::Tensor& gate_NF, const at::Tensor& up_NF) {
  TORCH_INTERNAL_ASSERT(gate_NF.strides() == up_NF.strides() && gate_NF.stride(1) == 1);
  return gate_NF.stride(0);
}

float* floats_or_null(at::Tensor& x) { return x.defined() ? x.data_ptr<float>() : nullptr; }

}  // namespace

template <std::size_t N, typename Body>
void CpuOps::launch_with_columns(std::int64_t rows, std::array<float*, N> columns, std::int64_t dim,
                                 const Body& body) const {
  const std::int64_t chunks = std::clamp<std::int64_t>(rows * dim / 65536, 1, at::get_num_threads());
  if (chunks == 1) {
    launch(1, 1, [&](std::int64_t, std::int64_t) { body(std::int64_t{0}, rows, columns); });
    return;
  }
  std::vector<float> partial(static_cast<std::size_t>(chunks * static_cast<std::int64_t>(N) * dim), 0.0f);
  const auto copy_of = [&](std::int64_t c, std::size_t k) {
    return partial.data() + (c * static_cast<std::int64_t>(N) + static_cast<std::int64_t>(k)) * dim;
  };
  launch(chunks, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t c = first; c < last; ++c) {
      std::array<float*, N> mine{};
      for (std::size_t k = 0; k < N; ++k) mine[k] = columns[k] == nullptr ? nullptr : copy_of(c, k);
      body(rows * c / chunks, rows * (c + 1) / chunks, mine);
    }
  });
  launch(1, 1, [&](std::int64_t, std::int64_t) {
    for (std::int64_t c = 0; c < chunks; ++c) {
      for (std::size_t k = 0; k < N; ++k) {
        if (columns[k] == nullptr) continue;
        const float* from = copy_of(c, k);
        for (std::int64_t j = 0; j < dim; ++j) columns[k][j] += from[j];
      }
    }
  });
}

NormResult CpuOps::add_layer_norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D,
                                  const at::Tensor& gamma_D, const at::Tensor& beta_D, double eps) const {
  const auto n = x_ND.size(0), dim = x_ND.size(1);
  auto result = norm_result(x_ND, y_ND, eps, true);
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
  launch(n, row_grain(dim), [&](auto b, auto e) { kernels::table().layer_norm(type_of(x_ND), args, b, e); });
  return result;
}

NormResult CpuOps::add_rms_norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D,
                                const at::Tensor& gamma_D, const RmsNorm& kind) const {
  const auto n = x_ND.size(0), dim = x_ND.size(1);
  auto result = norm_result(x_ND, y_ND, kind.eps, false);
  result.offset = kind.offset;
  const kernels::RmsNormArgs args{result.sum_ND.data_ptr(),
                                  result.out_ND.data_ptr(),
                                  result.rstd_N.data_ptr<float>(),
                                  x_ND.const_data_ptr(),
                                  data_or_null(y_ND),
                                  data_or_null(y_bias_D),
                                  gamma_D.const_data_ptr(),
                                  kind.eps,
                                  static_cast<float>(kind.offset),
                                  dim};
  launch(n, row_grain(dim), [&](auto b, auto e) { kernels::table().rms_norm(type_of(x_ND), args, b, e); });
  return result;
}

at::Tensor CpuOps::layer_norm_backward(const NormBackward& norm, const NormGrads& grads, const NormAgain* again) const {
  const auto& x_ND = norm.x_ND;
  const auto dim = x_ND.size(1);
  auto out_ND = at::empty_like(x_ND);
  auto grad_gamma = zero_sums(x_ND), grad_beta = zero_sums(x_ND);
  at::Tensor grad_y_bias;
  if (grads.y_bias != nullptr) grad_y_bias = zero_sums(x_ND);
  kernels::NormBackwardArgs args{out_ND.data_ptr(),
                                 norm.grad_ND.const_data_ptr(),
                                 data_or_null(norm.residual_ND),
                                 x_ND.const_data_ptr(),
                                 norm.saved.mean_N.const_data_ptr<float>(),
                                 norm.saved.rstd_N.const_data_ptr<float>(),
                                 norm.gamma_D.const_data_ptr(),
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
  const std::array<float*, 3> columns{floats_or_null(grad_gamma), floats_or_null(grad_beta),
                                      floats_or_null(grad_y_bias)};
  launch_with_columns(x_ND.size(0), columns, dim,
                      [&](std::int64_t b, std::int64_t e, const std::array<float*, 3>& mine) {
                        auto part = args;
                        part.grad_gamma_D = mine[0];
                        part.grad_beta_D = mine[1];
                        part.sum_grad_x_D = mine[2];
                        kernels::table().layer_norm_backward(type_of(x_ND), part, b, e);
                      });
  accumulate(grads.gamma, grad_gamma);
  accumulate(grads.beta, grad_beta);
  if (grads.y_bias != nullptr) accumulate(grads.y_bias, grad_y_bias);
  return out_ND;
}

at::Tensor CpuOps::rms_norm_backward(const NormBackward& norm, const NormGrads& grads, const NormAgain* again) const {
  const auto& x_ND = norm.x_ND;
  const auto dim = x_ND.size(1);
  auto out_ND = at::empty_like(x_ND);
  if (again != nullptr) again->out_ND = at::empty_like(x_ND);
  auto grad_gamma = zero_sums(x_ND);
  at::Tensor grad_y_bias;
  if (grads.y_bias != nullptr) grad_y_bias = zero_sums(x_ND);
  const std::array<float*, 2> columns{floats_or_null(grad_gamma), floats_or_null(grad_y_bias)};
  launch_with_columns(x_ND.size(0), columns, dim,
                      [&](std::int64_t b, std::int64_t e, const std::array<float*, 2>& mine) {
                        const kernels::RmsNormBackwardArgs args{out_ND.data_ptr(),
                                                                norm.grad_ND.const_data_ptr(),
                                                                data_or_null(norm.residual_ND),
                                                                x_ND.const_data_ptr(),
                                                                norm.saved.rstd_N.const_data_ptr<float>(),
                                                                norm.gamma_D.const_data_ptr(),
                                                                mine[0],
                                                                mine[1],
                                                                again == nullptr ? nullptr : again->out_ND.data_ptr(),
                                                                static_cast<float>(norm.saved.offset),
                                                                dim};
                        kernels::table().rms_norm_backward(type_of(x_ND), args, b, e);
                      });
  accumulate(grads.gamma, grad_gamma);
  if (grads.y_bias != nullptr) accumulate(grads.y_bias, grad_y_bias);
  return out_ND;
}

at::Tensor CpuOps::bias_gelu(at::Tensor& pre_NF, const at::Tensor& bias_F) const {
  auto out_NF = at::empty_like(pre_NF);
  const auto dim = pre_NF.size(1);
  const kernels::GeluArgs args{pre_NF.data_ptr(), out_NF.data_ptr(), data_or_null(bias_F), dim};
  launch(pre_NF.size(0), row_grain(dim),
         [&](auto b, auto e) { kernels::table().bias_gelu(type_of(pre_NF), args, b, e); });
  return out_NF;
}

void CpuOps::bias_gelu_backward(at::Tensor& grad_NF, const at::Tensor& pre_NF, GradSlot* grad_bias_F,
                                at::Tensor* again_NF) const {
  const auto dim = pre_NF.size(1);
  if (again_NF != nullptr) *again_NF = at::empty_like(pre_NF);
  auto grad_bias = zero_sums(pre_NF);
  const std::array<float*, 1> columns{grad_bias.data_ptr<float>()};
  launch_with_columns(
      pre_NF.size(0), columns, dim, [&](std::int64_t b, std::int64_t e, const std::array<float*, 1>& mine) {
        const kernels::GeluBackwardArgs args{grad_NF.data_ptr(), again_NF == nullptr ? nullptr : again_NF->data_ptr(),
                                             pre_NF.const_data_ptr(), mine[0], dim};
        kernels::table().bias_gelu_backward(type_of(pre_NF), args, b, e);
      });
  accumulate(grad_bias_F, grad_bias);
}

at::Tensor CpuOps::gated(GateActivation gate, const at::Tensor& gate_NF, const at::Tensor& up_NF) const {
  auto out_NF = at::empty(gate_NF.sizes(), gate_NF.options());
  const auto dim = gate_NF.size(1);
  const kernels::GatedArgs args{out_NF.data_ptr(),          gate_NF.const_data_ptr(),
                                up_NF.const_data_ptr(),     dim,
                                leading_of(gate_NF, up_NF), gate == GateActivation::gelu_tanh};
  launch(gate_NF.size(0), row_grain(dim),
         [&](auto b, auto e) { kernels::table().gated(type_of(gate_NF), args, b, e); });
  return out_NF;
}

void CpuOps::gated_backward(GateActivation gate, at::Tensor& grad_NF, at::Tensor& gate_NF, at::Tensor& up_NF) const {
  const auto dim = gate_NF.size(1);
  const kernels::GatedBackwardArgs args{grad_NF.data_ptr(),         gate_NF.data_ptr(),
                                        up_NF.data_ptr(),           dim,
                                        leading_of(gate_NF, up_NF), gate == GateActivation::gelu_tanh};
  launch(gate_NF.size(0), row_grain(dim),
         [&](auto b, auto e) { kernels::table().gated_backward(type_of(gate_NF), args, b, e); });
}

void CpuOps::add_bias(at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& bias_D) const {
  const auto dim = x_ND.size(1);
  launch(x_ND.size(0), row_grain(dim), [&](auto b, auto e) {
    kernels::table().add_bias(type_of(x_ND), x_ND.data_ptr(), data_or_null(y_ND), data_or_null(bias_D), dim, b, e);
  });
}

void CpuOps::bias_grad(GradSlot* slot, const at::Tensor& grad_ND) const {
  if (slot == nullptr) return;
  const auto dim = grad_ND.size(1);
  auto sum = zero_sums(grad_ND);
  const std::array<float*, 1> columns{sum.data_ptr<float>()};
  launch_with_columns(grad_ND.size(0), columns, dim,
                      [&](std::int64_t b, std::int64_t e, const std::array<float*, 1>& mine) {
                        kernels::table().column_sum(type_of(grad_ND), grad_ND.const_data_ptr(), mine[0], dim, b, e);
                      });
  accumulate(slot, sum);
}

void CpuOps::rope(at::Tensor& x_NC, std::int64_t heads, std::int64_t head_size, const RopeTable& table,
                  const TokenPositions& place, bool inverse) const {
  const kernels::RopeArgs args{x_NC.data_ptr(),
                               x_NC.stride(0),
                               heads,
                               head_size,
                               table.cos_PH.size(1),
                               table.cos_PH.const_data_ptr<float>(),
                               table.sin_PH.const_data_ptr<float>(),
                               place.row_length,
                               place.first_position,
                               inverse,
                               positions_or_null(place)};
  launch(x_NC.size(0), row_grain(heads * head_size),
         [&](auto b, auto e) { kernels::table().rope(type_of(x_NC), args, b, e); });
}

}  // namespace fsdp
