// Muon: the direction of an update, and its orthogonalization by Newton-Schulz iteration.
#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>

#include "lib/compute/ops/ops.hpp"

namespace fsdp {
namespace {

/// Coefficients of torch.optim.Muon. They do not converge to 1, but give singular values of 0.7 to 1.2 after few steps.
constexpr double kA = 3.4445, kB = -4.775, kC = 2.0315;
constexpr int kSteps = 5;
constexpr double kLeastNorm = 1e-7;

/// Elements that are converted at a time.
constexpr std::int64_t kMuonElements = std::int64_t{1} << 20;

template <typename Body>
void for_pieces(const MuonUpdate& u, const Body& body) {
  const auto rows = u.param.size(0), columns = std::max<std::int64_t>(1, u.param.size(1));
  const auto step = std::max<std::int64_t>(1, kMuonElements / columns);
  for (std::int64_t first = 0; first < rows; first += step) {
    const auto n = std::min(step, rows - first);
    body([=](const at::Tensor& x) { return x.narrow(0, first, n); });
  }
}

}  // namespace

void Ops::muon_direction(const MuonUpdate& u, const at::Tensor& direction) const {
  for_pieces(u, [&](const auto& piece) {
    const auto grad = piece(u.grad).div(u.grad_divisor), momentum = piece(u.momentum_buffer);
    momentum.lerp_(grad, 1 - u.momentum);
    const auto next = grad.lerp(momentum, u.momentum);
    if (is_on_host(u.grad) == is_on_host(direction)) {
      piece(direction).copy_(next);
    } else {
      transfer(piece(direction), next.to(direction.scalar_type()));
    }
  });
}

at::Tensor Ops::orthogonalize(const at::Tensor& matrix) const {
  const bool tall = matrix.size(0) > matrix.size(1);
  const auto wide = tall ? matrix.t() : matrix;
  auto x_RC = wide.div(at::linalg_vector_norm(wide).clamp_min(kLeastNorm));  // makes singular values at most 1
  for (int i = 0; i < kSteps; ++i) {
    const auto gram_RR = linear(x_RC, x_RC);
    const auto factor_RR = blended_product(gram_RR, kB, gram_RR, gram_RR, kC);
    x_RC = blended_product(x_RC, kA, factor_RR, x_RC, 1.0);
  }
  return tall ? x_RC.t() : x_RC;
}

void Ops::muon_apply(const MuonUpdate& u, const at::Tensor& orthogonal) const {
  // With master weights on the host, the result is fetched first by to_host(), which fails if a rank is gone: a copy
  // between dtypes would wait forever.
  const auto here = is_on_host(u.param) ? to_host(orthogonal) : orthogonal;
  for_pieces(u, [&](const auto& piece) {
    piece(u.param).mul_(1 - u.lr * u.weight_decay).add_(piece(here).to(u.param.options()), -u.rate);
  });
}

}  // namespace fsdp
