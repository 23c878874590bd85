#pragma once
// How far two tensors are apart.
#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

namespace fsdp::test {

/// |got - want| / |want| in L2 norms, in float64. Infinite for shapes that differ and for a NaN on one side.
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

/// Same shape and the same bits (so that NaN equals NaN and 0 differs from -0).
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const auto x = a.detach().contiguous();
  const auto y = b.detach().contiguous();
  const auto* p = static_cast<const unsigned char*>(x.const_data_ptr());
  return x.numel() == 0 || std::equal(p, p + x.nbytes(), static_cast<const unsigned char*>(y.const_data_ptr()));
}

/// Remembers the largest of what it saw.
struct Worst {
  double value = 0;
  void operator()(double next) {
    value = std::isnan(next) ? std::numeric_limits<double>::infinity() : std::max(value, next);
  }
};

}  // namespace fsdp::test
