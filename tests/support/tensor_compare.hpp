#pragma once
// Measures how much two tensors differ.
#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

namespace fsdp::test {

/// Returns |got - want| / |want| in L2 norms, computed in float64; infinite when shapes differ or one side has a NaN.
inline double relative_error(const at::Tensor& got, const at::Tensor& want) {
  const double bad = std::numeric_limits<double>::infinity();
  if (got.sizes() != want.sizes()) return bad;
  if (got.numel() == 0) return 0.0;
  const auto a = got.detach().to(at::kDouble);
  const auto b = want.detach().to(at::kDouble);
  const double difference = (a - b).norm().item<double>();
  const double size = b.norm().item<double>();
  if (difference == 0.0) return 0.0;
  return std::isnan(difference) || size == 0.0 ? bad : difference / size;
}

/// True when shapes, types and bits are equal, so NaN equals NaN and 0 differs from -0.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const auto x = a.detach().contiguous();
  const auto y = b.detach().contiguous();
  const auto* p = static_cast<const unsigned char*>(x.const_data_ptr());
  return x.numel() == 0 || std::equal(p, p + x.nbytes(), static_cast<const unsigned char*>(y.const_data_ptr()));
}

/// Keeps the largest value that it was called with; a NaN counts as infinite.
struct Worst {
  double value = 0;
  void operator()(double next) {
    value = std::isnan(next) ? std::numeric_limits<double>::infinity() : std::max(value, next);
  }
};

}  // namespace fsdp::test
