#include "lib/training/step/throughput.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <string>

#include "lib/base/process/variables.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/compute/device/gpus.hpp"
#include "lib/compute/ops/products/gemm.hpp"
#include "lib/compute/tensor/without_autograd.hpp"

namespace fsdp {
namespace {

/// A product [m, k] @ [k, n] by the engine's own code; `transposed` if the second factor is stored as weights are, [n,
/// k].
struct Product {
  std::int64_t m, k, n;
  bool transposed;
};

/// Best of a few: what else runs on the machine only slows it.
double measured_flops(const Product& p, at::ScalarType dtype, int repeats) {
  const auto a = at::ones({p.m, p.k}, dtype);
  const auto b = p.transposed ? at::ones({p.n, p.k}, dtype).t() : at::ones({p.k, p.n}, dtype);
  auto out = at::empty({p.m, p.n}, dtype);
  host_product(out, a, b, false);
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    host_product(out, a, b, false);
    best = std::min(best, seconds_since(start));
  }
  return 2.0 * static_cast<double>(p.m * p.k * p.n) / best;
}

/// The side of a cube that takes about `seconds`: long against clocks and the waking of threads, short against a start.
std::int64_t cube_side(double flops_per_second, double seconds) {
  constexpr std::int64_t kStep = 128;
  const auto side = static_cast<std::int64_t>(std::cbrt(flops_per_second * seconds / 2));
  return std::clamp(side / kStep * kStep, 3 * kStep, 64 * kStep);
}

/// No one shape is the fastest for every library, type and cache: the best of several, as blocks and heads have them.
double measured_cpu_flops(at::ScalarType dtype) {
  const WithoutAutograd guard;
  const double small = measured_flops({384, 384, 384, false}, dtype, 2);
  // A type without a fast kernel here (fp16 on most CPUs) would take half a minute and tell nothing.
  if (small < 8e9) return 0;
  const auto n = cube_side(small, 8e-3);
  const std::array<Product, 6> products{{{n, n, n, false},
                                         {n, n, n, true},
                                         {n, n / 4, n, true},
                                         {n, n, n / 4, false},
                                         {n, n / 2, 2 * n, true},
                                         {n / 2, n / 2, n / 2, false}}};
  std::array<double, products.size()> rates{};
  for (std::size_t i = 0; i < products.size(); ++i) rates[i] = measured_flops(products[i], dtype, 1);
  const auto best = static_cast<std::size_t>(std::max_element(rates.begin(), rates.end()) - rates.begin());
  const auto& p = products[best];  // larger, it comes closer to the peak
  return std::max(rates[best], measured_flops({2 * p.m, 2 * p.k, p.n, p.transposed}, dtype, 2));
}

}  // namespace

double peak_flops(const DeviceChoice& device, at::ScalarType dtype) {
  if (device.device.is_cpu()) {
    const auto known = variable_value("FSDP_CPU_FLOPS");
    return known ? std::stod(*known) : measured_cpu_flops(dtype);
  }
  const auto peak = peak_of_gpu(device.description);
  return 1e12 * (dtype == at::kFloat ? peak.float32 : peak.bf16);
}

}  // namespace fsdp
