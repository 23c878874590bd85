// Formats and sizes of fp8 matrices.
#include "lib/compute/ops/products/fp8.hpp"

#include <ATen/ops/empty.h>

#include "lib/compute/ops/fused_kernels.hpp"

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

}  // namespace fsdp
