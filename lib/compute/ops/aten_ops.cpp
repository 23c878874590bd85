#include "lib/compute/ops/aten_ops.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "lib/compute/ops/gemm.hpp"

namespace fsdp {
namespace {

/// Sums rows in float32: in 16 bits, gradients of a frequent id would soon be too small to change the sum.
void add_rows(at::Tensor& to_VD, const at::Tensor& rows_N, const at::Tensor& from_ND) {
  const auto type = to_VD.element_size() == 2 ? at::kFloat : to_VD.scalar_type();
  auto sums_VD = to_VD.to(type);
  sums_VD.index_add_(0, rows_N, from_ND.to(type));
  if (!sums_VD.is_same(to_VD)) to_VD.copy_(sums_VD);
}

}  // namespace

void AtenOps::product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) const {
  aten_product(out, a, b, add);
}

void AtenOps::add_converted(at::Tensor& to, const at::Tensor& from) const { to.add_(from); }

double AtenOps::sum_squares(std::span<const GradPart> parts) const {
  std::vector<GradPart> of_host;
  at::Tensor on_device;  // fetched once, since each item() would synchronize
  for (const auto& part : parts) {
    if (is_on_host(part.grad)) {
      of_host.push_back(part);
      continue;
    }
    const auto sum = part.grad.to(at::kDouble).square_().sum();
    on_device = on_device.defined() ? on_device + sum : sum;
  }
  double total = host_ops().sum_squares(of_host);
  if (on_device.defined()) total += read(on_device)[0];
  return total;
}

void AtenOps::sum_sources(const at::Tensor& out, std::int64_t n, std::span<const void* const> sources,
                          at::ScalarType dtype, bool accumulate) const {
  host_ops().sum_sources(out, n, sources, dtype, accumulate);
}

at::Tensor AtenOps::column_sums(const at::Tensor& x_ND) const {
  return x_ND.sum(at::IntArrayRef{0}, false, at::kFloat);
}

at::Tensor AtenOps::row_positions(std::int64_t n, const TokenPositions& place) const {
  if (place.positions_N.defined()) return place.positions_N;
  const auto options = at::TensorOptions(at::kLong).device(device());
  return at::arange(n, options).remainder(place.row_length).add_(place.first_position);
}

at::Tensor AtenOps::select_rows(const at::Tensor& from_PD, const at::Tensor& rows_N) const {
  return from_PD.index_select(0, rows_N);
}

at::Tensor AtenOps::embed(const at::Tensor& token_VD, const at::Tensor& position_PD, const at::Tensor& ids_N,
                          TokenPositions place) const {
  if (!position_PD.defined()) return select_rows(token_VD, ids_N);
  const auto positions_N = row_positions(ids_N.size(0), place);
  return select_rows(token_VD, ids_N).add_(select_rows(position_PD, positions_N));
}

void AtenOps::embed_backward(at::Tensor* grad_token_VD, at::Tensor* grad_position_PD, const at::Tensor& grad_ND,
                             const at::Tensor& ids_N, const TokenPositions& place) const {
  if (grad_token_VD != nullptr) add_rows(*grad_token_VD, ids_N, grad_ND);
  if (grad_position_PD != nullptr) add_rows(*grad_position_PD, row_positions(ids_N.size(0), place), grad_ND);
}

at::Tensor AtenOps::dropout_mask(const at::Tensor& keys_N, std::int64_t columns, double probability,
                                 at::ScalarType dtype) const {
  auto mask = at::ones({keys_N.size(0), columns}, at::TensorOptions(at::kFloat).device(host()));
  host_ops().dropout(mask, keys_N.to(host()), probability);
  return to_device(mask.to(dtype));
}

void AtenOps::dropout(at::Tensor& x_ND, const at::Tensor& keys_N, double probability) const {
  if (!on_host() && is_on_host(x_ND)) return host_ops().dropout(x_ND, keys_N.to(host()), probability);
  x_ND.mul_(dropout_mask(keys_N, x_ND.size(1), probability, x_ND.scalar_type()));
}

at::Tensor AtenOps::log_softmax(const at::Tensor& logits_NV) const { return at::log_softmax(logits_NV, 1, at::kFloat); }

void AtenOps::cross_entropy(StepSums& sums, at::Tensor& logits_NV, const Targets& targets, std::int64_t vocab,
                            const GradScale& grad_scale) const {
  const auto n = logits_NV.size(0);
  const auto real = logits_NV.narrow(1, 0, vocab);
  const auto pending = sums.on_device(logits_NV.options());
  const auto counts = targets.ids_N.ge(0);
  const auto target = targets.ids_N.clamp_min(0).to(at::kLong).unsqueeze(1);
  auto log_probs = log_softmax(real);
  auto weights = counts.to(at::kFloat);
  if (targets.weights_N.defined()) weights.mul_(targets.weights_N);
  pending.select(0, 0).sub_((log_probs.gather(1, target).squeeze(1) * weights).sum(at::kDouble));
  pending.select(0, 1).add_(targets.weights_N.defined() ? weights.sum(at::kDouble) : counts.sum());
  if (grad_scale.value == 0) return;
  auto grad = log_probs.exp_();
  grad.scatter_add_(1, target, at::zeros({n, 1}, grad.options()).sub_(1));
  const auto weights_N1 = weights.unsqueeze(1);
  grad.mul_(grad_scale.on_device.defined() ? weights_N1.mul(grad_scale.on_device) : weights_N1.mul(grad_scale.value));
  logits_NV.zero_();
  logits_NV.narrow(1, 0, vocab).copy_(grad);
}

}  // namespace fsdp
