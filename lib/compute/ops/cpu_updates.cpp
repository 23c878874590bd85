// Optimizer updates on the CPU: one pass over a parameter, its gradient and its states.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string_view>
#include <vector>

#include "lib/compute/ops/blockwise_numbers.hpp"
#include "lib/compute/ops/cpu_ops.hpp"
#include "lib/compute/ops/row_loops.hpp"

namespace fsdp {

using namespace detail;

namespace {

/// Least number of elements per thread.
constexpr std::int64_t kGrain = 32768;

const kernels::UpdateKernel& kernel_named(std::string_view name) {
  for (const auto& kernel : kernels::table().updates) {
    if (kernel.name == name) return kernel;
  }
  TORCH_CHECK(false, "there is no kernel ", name);
}

}  // namespace

void CpuOps::update(const ElementwiseUpdate& u) const {
  const auto& kernel = kernel_named(u.kernel);
  const auto array = [&](const at::Tensor& x) -> kernels::UpdatedArray {
    TORCH_CHECK(kernel.takes_bf16 || x.scalar_type() == at::kFloat, u.kernel, " was given ", x.scalar_type());
    return {x.data_ptr(), type_of(x)};
  };
  kernels::UpdateArgs args;
  args.lr = static_cast<float>(u.lr);
  args.weight_decay = static_cast<float>(u.weight_decay);
  args.decay_factor = static_cast<float>(1 - u.lr * u.weight_decay);
  args.grad_scale = static_cast<float>(1 / u.grad_divisor);
  for (std::size_t n = 0; n < u.numbers.size(); ++n) args.numbers.at(n) = u.numbers[n];
  for (std::size_t i = 0; i < u.params.size(); ++i) {
    args.param = array(u.params[i]);
    args.grad = u.grads[i].data_ptr<float>();
    for (std::size_t s = 0; s < u.states.size(); ++s) args.states.at(s) = array(u.states[s][i]);
    launch(u.params[i].numel(), kGrain, [&](auto b, auto e) { kernel.run(args, b, e); });
  }
}

// Adafactor: three passes over the gradient. Sums are float64 and by row, so that float32 results do not depend on the
// number of threads or ranks.

namespace {

float* floats_or_null(const at::Tensor& x) { return x.defined() ? x.data_ptr<float>() : nullptr; }

/// A parameter that is not a matrix is one row.
std::int64_t rows_of(const AdafactorUpdate& u) { return u.variance.defined() ? 1 : u.param.size(0); }

/// Arguments that do not depend on sums over ranks. \param row_sums  float64 [rows]
kernels::AdafactorArgs arguments(const AdafactorUpdate& u, const at::Tensor& row_sums) {
  kernels::AdafactorArgs a;
  a.param = u.param.data_ptr<float>();
  a.grad = u.grad.data_ptr<float>();
  a.row_var = floats_or_null(u.row_var);
  a.col_var = floats_or_null(u.col_var);
  a.variance = floats_or_null(u.variance);
  a.exp_avg = floats_or_null(u.exp_avg);
  a.row_sums = row_sums.data_ptr<double>();
  a.column_sums = u.variance.defined() ? nullptr : u.sums.data_ptr<double>() + 2;
  a.columns = u.variance.defined() ? u.param.numel() : u.param.size(1);
  a.grad_scale = static_cast<float>(1 / u.grad_divisor);
  a.new_weight = u.new_weight;
  a.square_eps = u.square_eps();
  a.least_variance = u.transformers ? 0.0f : static_cast<float>(u.eps1 * u.eps1);
  a.separate_roots = u.transformers;
  a.beta1 = static_cast<float>(u.beta1);
  a.rest1 = static_cast<float>(1 - u.beta1);
  return a;
}

/// The mean of row_var over the whole parameter.
double mean_of_rows(const AdafactorUpdate& u) {
  if (u.variance.defined()) return 1;
  const double mean = u.sums.data_ptr<double>()[1] / static_cast<double>(u.rows);
  return u.transformers ? mean : std::max(mean, u.eps1);
}

double root_of_mean(const AdafactorUpdate& u, double sum) { return std::sqrt(sum / static_cast<double>(u.elements)); }

}  // namespace

void CpuOps::adafactor_statistics(const AdafactorUpdate& u) const {
  const auto rows = rows_of(u);
  const auto row_sums = at::empty({rows}, u.sums.options());
  const auto args = arguments(u, row_sums);
  launch(rows, row_grain(args.columns), [&](auto b, auto e) { kernels::table().adafactor_rows(args, b, e); });
  u.sums.select(0, 0).copy_(row_sums.sum());
  if (u.variance.defined()) return;
  u.sums.select(0, 1).copy_(u.row_var.sum(at::kDouble));
  constexpr std::int64_t kColumnGrain = 256;
  launch(args.columns, kColumnGrain, [&](auto b, auto e) { kernels::table().adafactor_columns(args, rows, b, e); });
}

void CpuOps::adafactor_update_size(const AdafactorUpdate& u) const {
  const auto rows = rows_of(u);
  const auto row_sums = at::empty({rows}, u.sums.options());
  auto args = arguments(u, row_sums);
  if (!u.variance.defined()) {
    const auto scale = 1 / static_cast<double>(u.rows);
    launch(args.columns, args.columns,
           [&](auto b, auto e) { kernels::table().adafactor_column_means(args, scale, b, e); });
  }
  launch(rows, row_grain(args.columns), [&](auto b, auto e) {
    auto mine = args;
    mine.row_scale = static_cast<float>(1 / mean_of_rows(u));
    kernels::table().adafactor_sizes(mine, b, e);
  });
  u.update_sum.copy_(row_sums.sum());
}

void CpuOps::adafactor_apply(const AdafactorUpdate& u) const {
  const auto args = arguments(u, u.sums);
  launch(rows_of(u), row_grain(args.columns), [&](auto b, auto e) {
    auto mine = args;
    const double size = u.scale_parameter ? std::max(u.eps2, root_of_mean(u, u.sums.data_ptr<double>()[0])) : 1.0;
    const double rate = u.rate * size;
    mine.row_scale = static_cast<float>(1 / mean_of_rows(u));
    mine.rate = static_cast<float>(rate / std::max(1.0, root_of_mean(u, *u.update_sum.data_ptr<double>())));
    mine.weight_decay_factor = static_cast<float>(u.weight_decay_factor * (1 - rate * u.relative_decay));
    kernels::table().adafactor_apply(mine, b, e);
  });
}

// AdamW and Lion with quantized moments: one pass.

namespace {

kernels::BlockwiseArgs blockwise_arguments(const BlockwiseUpdate& u) {
  const auto moment = [&](const BlockwiseMoment& m, bool is_signed) -> kernels::BlockwiseMoment {
    if (!m.codes.defined()) return {};
    return {m.codes.data_ptr<std::uint8_t>(), m.scales.data_ptr<float>(), &kernels::moment_code(u.format, is_signed)};
  };
  kernels::BlockwiseArgs a;
  a.lion = u.lion;
  a.param = u.param.data_ptr<float>();
  a.grad = u.grad.data_ptr<float>();
  a.first = moment(u.first, true);
  a.second = moment(u.second, false);
  a.edges = u.edges.defined() ? u.edges.data_ptr<double>() : nullptr;
  a.elements = u.param.numel();
  a.blocks = u.first.scales.numel();
  a.block = kernels::moment_block(u.format);
  a.offset = u.first_element % a.block;
  a.grad_scale = static_cast<float>(1 / u.grad_divisor);
  set_numbers(a, u);
  return a;
}

}  // namespace

void CpuOps::blockwise(const BlockwiseUpdate& u) const {
  constexpr std::int64_t kBlocksOfAThread = 128;
  const auto args = blockwise_arguments(u);
  launch(args.blocks, kBlocksOfAThread, [&](auto b, auto e) { kernels::table().blockwise(args, b, e); });
}

void CpuOps::blockwise_edges(const BlockwiseUpdate& u, const at::Tensor& largest) const {
  const auto args = blockwise_arguments(u);
  auto* out = largest.data_ptr<double>();
  launch(args.blocks > 0 ? 1 : 0, 1, [&](auto b, auto e) {
    if (b == e) return;
    kernels::table().blockwise_largest(args, 0, out);
    kernels::table().blockwise_largest(args, args.blocks - 1, out + 2);
  });
}

void CpuOps::count_bits(const GradPart& part, BitRange range, std::span<double> counts) const {
  constexpr std::int64_t kGrain = std::int64_t{1} << 18;
  std::mutex mutex;
  launch(part.elements, kGrain, [&](std::int64_t begin, std::int64_t end) {
    const auto* values = static_cast<const std::uint32_t*>(part.grad.const_data_ptr());
    const std::uint32_t mask = (std::uint32_t{1} << range.bits) - 1;
    std::vector<std::int64_t> mine(counts.size(), 0);
    for (auto i = begin; i < end; ++i) {
      const std::uint64_t bits = values[i];
      if (bits >> (range.shift + range.bits) == range.prefix) ++mine[bits >> range.shift & mask];
    }
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < mine.size(); ++i) counts[i] += static_cast<double>(mine[i]);
  });
}

}  // namespace fsdp
