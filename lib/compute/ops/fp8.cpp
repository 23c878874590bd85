// fp8 casts and products by plain operators: the fallback for devices without fp8, and the reference in tests.
#include "lib/compute/ops/fp8.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "lib/compute/ops/fused_kernels.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/compute/tensor/memory_scope.hpp"

namespace fsdp {

using fused::kFp8LeastLargest;

bool can_be_fp8(std::int64_t rows, std::int64_t columns) {
  return rows > 0 && rows % kFp8Multiple == 0 && columns > 0 && columns % kFp8Multiple == 0;
}

std::int64_t fp8_padded(std::int64_t rows) { return (rows + kFp8Multiple - 1) / kFp8Multiple * kFp8Multiple; }

bool can_take_fp8(const at::Tensor& out) {
  const auto element = static_cast<std::int64_t>(out.element_size());
  return out.storage_offset() * element % 16 == 0 && out.stride(0) * element % 16 == 0 && out.stride(1) == 1;
}

bool asks_for_fp8(const std::optional<at::ScalarType>& compute_dtype) {
  return compute_dtype == fp8_type(Fp8Format::e4m3);
}

at::ScalarType fp8_type(Fp8Format format) { return format == Fp8Format::e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2; }

double fp8_max(Fp8Format format) { return format == Fp8Format::e4m3 ? fused::kE4m3Max : fused::kE5m2Max; }

float fp8_scale(float largest, Fp8Format format) {
  const double value = largest;
  return static_cast<float>(fp8_max(format) / (value < kFp8LeastLargest ? kFp8LeastLargest : value));
}

std::string gpu_fp8_problem(int compute_capability) {
  if (compute_capability >= 89) return {};
  return "compute capability " + std::to_string(compute_capability / 10) + "." +
         std::to_string(compute_capability % 10) + ", 8.9 at least is needed";
}

void detail::make_room(Fp8Matrix& made, const at::Tensor& x_RC, const at::TensorOptions& codes, Fp8Sides sides) {
  if (!made.inverse.defined()) made.inverse = at::empty({1}, codes.dtype(at::kFloat));
  if (sides != Fp8Sides::columns && !made.rows_RC.defined()) made.rows_RC = at::empty(x_RC.sizes(), codes);
  if (sides != Fp8Sides::rows && !made.columns_CR.defined())
    made.columns_CR = at::empty({x_RC.size(1), fp8_padded(x_RC.size(0))}, codes);
}

std::string Ops::fp8_way() const { return "float8 emulated in float32"; }

std::string Ops::fp8_problem() const { return {}; }

Fp8Matrix Ops::to_fp8(const at::Tensor& x_RC, Fp8Format format, Fp8Sides sides) const {
  const auto largest = fp8_largest(x_RC);
  auto made = fp8_cast(x_RC, largest, format, sides);
  made.largest = largest;
  return made;
}

// Uses operators that support meta tensors.
at::Tensor Ops::fp8_largest(const at::Tensor& x_RC) const {
  return at::linalg_vector_norm(x_RC, std::numeric_limits<double>::infinity()).to(at::kFloat).view({1});
}

Fp8Matrix Ops::fp8_cast(const at::Tensor& x_RC, const at::Tensor& largest, Fp8Format format, Fp8Sides sides,
                        Fp8Matrix made) const {
  const auto most = at::amax(largest).to(at::kDouble).clamp_min_(kFp8LeastLargest);
  const auto scale = at::full({}, fp8_max(format), most.options()).div_(most).to(at::kFloat);
  const auto wide_RC = (x_RC.to(at::kFloat) * scale).clamp_(-fp8_max(format), fp8_max(format));
  const auto put = [](at::Tensor& to, const at::Tensor& from) { to.defined() ? to.copy_(from) : to = from; };
  put(made.inverse, scale.reciprocal().view({1}));
  if (sides != Fp8Sides::columns) put(made.rows_RC, wide_RC.contiguous().to(fp8_type(format)));
  if (sides == Fp8Sides::rows) return made;
  const auto rows = x_RC.size(0);
  auto columns_CR = at::zeros({x_RC.size(1), fp8_padded(rows)}, wide_RC.options().dtype(fp8_type(format)));
  columns_CR.narrow(1, 0, rows).copy_(wide_RC.t());
  put(made.columns_CR, columns_CR);
  return made;
}

at::Tensor Ops::fp8_columns(const at::Tensor& rows_RC) const {
  return rows_RC.view(at::kByte).t().contiguous().view(rows_RC.scalar_type());
}

void Ops::fp8_product(at::Tensor& out, Fp8Factor a, Fp8Factor b, Fp8Sums, bool add) const {
  const MemoryScope scope(MemoryCategory::workspace);
  const auto wide_a = a.values.to(at::kFloat), wide_b = b.values.to(at::kFloat);
  const auto scale = a.inverse * b.inverse;
  if (!add && out.scalar_type() == at::kFloat) {
    product(out, wide_a, wide_b.t(), false);
    out.mul_(scale);
    return;
  }
  auto sum = at::empty(out.sizes(), wide_a.options());
  product(sum, wide_a, wide_b.t(), false);
  sum.mul_(scale);
  add ? out.add_(sum.to(out.scalar_type())) : out.copy_(sum);
}

}  // namespace fsdp
