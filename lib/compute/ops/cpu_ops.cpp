#include "lib/compute/ops/cpu_ops.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "lib/compute/ops/gemm.hpp"
#include "lib/compute/ops/row_loops.hpp"
#include "lib/compute/ops/wide_product.hpp"

namespace fsdp {

using namespace detail;

const Ops& host_ops() {
  static const CpuOps ops;
  return ops;
}

std::string CpuOps::product_way(at::ScalarType dtype) const { return host_product_way(dtype); }

void CpuOps::product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) const {
  host_product(out, a, b, add);
}

at::Tensor CpuOps::blended_product(const at::Tensor& x, double beta, const at::Tensor& a, const at::Tensor& b,
                                   double alpha) const {
  constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 20;  // elements that are upcast at a time
  if (!is_upcast(x.scalar_type())) return Ops::blended_product(x, beta, a, b, alpha);
  auto out = at::empty_like(x);
  const auto wide_a = a.to(at::kFloat);
  const auto step = std::max<std::int64_t>(1, kElementsAtOnce / std::max<std::int64_t>(1, x.size(0)));
  for (std::int64_t column = 0; column < x.size(1); column += step) {
    const auto n = std::min(step, x.size(1) - column);
    const auto part = linear_backward(wide_a, b.narrow(1, column, n).to(at::kFloat));
    out.narrow(1, column, n).copy_(part.mul_(alpha).add_(x.narrow(1, column, n).to(at::kFloat), beta));
  }
  return out;
}

void CpuOps::add_converted(at::Tensor& to, const at::Tensor& from) const {
  if (to.scalar_type() != at::kFloat || from.element_size() != 2) {
    to.add_(from);
    return;
  }
  // ATen would first allocate a float32 copy of `from`, as large as the parameter.
  launch(to.numel(), 32768, [&](std::int64_t begin, std::int64_t end) {
    kernels::table().upcast_add(type_of(from), to.data_ptr<float>(), from.const_data_ptr(), begin, end);
  });
}

double CpuOps::sum_squares(std::span<const GradPart> parts) const {
  double total = 0;
  for (const auto& [grad, n] : parts) {
    // Pieces of fixed size, so that the sum does not depend on the number of threads.
    constexpr std::int64_t kPiece = 1 << 16;
    std::vector<double> sums(static_cast<std::size_t>((n + kPiece - 1) / kPiece));
    const auto* data = grad.const_data_ptr<float>();
    launch(static_cast<std::int64_t>(sums.size()), 4, [&, end_of_data = n](std::int64_t b, std::int64_t e) {
      for (std::int64_t i = b; i < e; ++i) {
        sums[static_cast<std::size_t>(i)] =
            kernels::table().sum_squares(data, i * kPiece, std::min(end_of_data, (i + 1) * kPiece));
      }
    });
    // Each part is summed on its own, so that calls with one part each add up to the same bits.
    total += std::accumulate(sums.begin(), sums.end(), 0.0);
  }
  return total;
}

void CpuOps::sum_sources(const at::Tensor& out, std::int64_t n, std::span<const void* const> sources,
                         at::ScalarType dtype, bool accumulate) const {
  auto* to = out.data_ptr<float>();
  launch(n, 65536, [&](std::int64_t b, std::int64_t e) {
    kernels::table().sum_sources(kernel_type(dtype), to, sources.data(), static_cast<int>(sources.size()), accumulate,
                                 b, e);
  });
}

at::Tensor CpuOps::embed(const at::Tensor& token_VD, const at::Tensor& position_PD, const at::Tensor& ids_N,
                         TokenPositions place) const {
  const auto n = ids_N.size(0);
  const auto dim = token_VD.size(1);
  auto out_ND = at::empty({n, dim}, token_VD.options());
  const kernels::EmbedArgs args{out_ND.data_ptr(),
                                token_VD.const_data_ptr(),
                                data_or_null(position_PD),
                                ids_N.const_data_ptr<std::int32_t>(),
                                place.row_length,
                                place.first_position,
                                dim,
                                positions_or_null(place)};
  launch(n, row_grain(dim), [&](auto b, auto e) { kernels::table().embed(type_of(token_VD), args, b, e); });
  return out_ND;
}

namespace {

/// Adds row t of `from_ND` to row row_of(t) of `to_RD`, in order of t, so that runs are reproducible. Several rows that
/// go to one 16-bit row are summed in float32 and rounded once; otherwise a frequent id would lose most of its
/// gradient. \param sum_D  float32 buffer for these sums
void add_rows(at::Tensor& to_RD, const at::Tensor& from_ND, const std::function<std::int64_t(std::int64_t)>& row_of,
              at::Tensor& sum_D) {
  const auto n = from_ND.size(0), dim = from_ND.size(1);
  const auto type = type_of(from_ND);
  const auto source = [&](std::int64_t row) {
    return static_cast<const std::byte*>(from_ND.const_data_ptr()) + row * dim * from_ND.element_size();
  };
  if (to_RD.scalar_type() == at::kFloat) {
    for (std::int64_t t = 0; t < n; ++t)
      kernels::table().upcast_add(type, to_RD.data_ptr<float>() + row_of(t) * dim, source(t), 0, dim);
    return;
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> order;  // target row, source row
  for (std::int64_t t = 0; t < n; ++t) order.emplace_back(row_of(t), t);
  std::sort(order.begin(), order.end());
  for (std::size_t first = 0, next = 0; first < order.size(); first = next) {
    const auto row = order[first].first;
    while (next < order.size() && order[next].first == row) ++next;
    auto target_D = to_RD.select(0, row);
    if (next == first + 1) {
      kernels::table().add_bias(type, target_D.data_ptr(), source(order[first].second), nullptr, dim, 0, 1);
      continue;
    }
    sum_D.copy_(target_D);
    for (auto i = first; i < next; ++i)
      kernels::table().upcast_add(type, sum_D.data_ptr<float>(), source(order[i].second), 0, dim);
    target_D.copy_(sum_D);
  }
}

}  // namespace

void CpuOps::embed_backward(at::Tensor* grad_token_VD, at::Tensor* grad_position_PD, const at::Tensor& grad_ND,
                            const at::Tensor& ids_N, const TokenPositions& place) const {
  const auto dim = grad_ND.size(1);
  const auto* ids = ids_N.const_data_ptr<std::int32_t>();
  const auto* positions = positions_or_null(place);
  // Kernels add to float32 or to the dtype that they read.
  const auto wire = (grad_token_VD != nullptr ? grad_token_VD : grad_position_PD)->scalar_type();
  const auto values_ND = wire == at::kFloat ? grad_ND : grad_ND.to(wire);
  auto sum_D = at::empty({dim}, grad_ND.options().dtype(at::kFloat));
  launch(1, 1, [&](std::int64_t, std::int64_t) {
    if (grad_token_VD != nullptr)
      add_rows(
          *grad_token_VD, values_ND, [&](auto t) { return ids[t]; }, sum_D);
    if (grad_position_PD == nullptr) return;
    const auto position = [&](auto t) { return positions != nullptr ? positions[t] : t % place.row_length; };
    add_rows(*grad_position_PD, values_ND, position, sum_D);
  });
}

void CpuOps::dropout(at::Tensor& x_ND, const at::Tensor& keys_N, double probability) const {
  const auto dim = x_ND.size(1);
  const kernels::DropoutArgs args{x_ND.data_ptr(),
                                  reinterpret_cast<const std::uint64_t*>(keys_N.const_data_ptr<std::int64_t>()),
                                  static_cast<float>(probability), dim};
  launch(x_ND.size(0), row_grain(dim), [&](auto b, auto e) { kernels::table().dropout(type_of(x_ND), args, b, e); });
}

void CpuOps::cross_entropy(StepSums& sums, at::Tensor& logits_NV, const Targets& targets, std::int64_t vocab,
                           const GradScale& grad_scale) const {
  const auto n = logits_NV.size(0);
  const kernels::CrossEntropyArgs args{
      logits_NV.data_ptr(),
      targets.ids_N.const_data_ptr<std::int32_t>(),
      targets.weights_N.defined() ? targets.weights_N.const_data_ptr<float>() : nullptr,
      vocab,
      logits_NV.size(1),
      static_cast<float>(grad_scale.value),
      grad_scale.value != 0};
  const std::int64_t chunks = std::clamp<std::int64_t>(n, 1, at::get_num_threads());
  std::vector<kernels::LossSum> parts(static_cast<std::size_t>(chunks));
  launch(chunks, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t c = first; c < last; ++c) {
      parts[static_cast<std::size_t>(c)] =
          kernels::table().cross_entropy(type_of(logits_NV), args, n * c / chunks, n * (c + 1) / chunks);
    }
  });
  kernels::LossSum all;
  for (const auto& part : parts) {
    all.nats += part.nats;
    all.weight += part.weight;
  }
  sums.nats += all.nats;
  sums.weight += all.weight;
}

}  // namespace fsdp
