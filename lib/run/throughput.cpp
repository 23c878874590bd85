#include "lib/run/throughput.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "lib/tensor/gemm.hpp"

namespace fsdp {
namespace {

struct GpuPeak {
  const char* name;
  double bf16_tflops;
  double float32_tflops;  ///< without TF32, which is off by default
};

// Dense figures of NVIDIA's data sheets (SXM parts unless named).
constexpr std::array<GpuPeak, 6> kGpus{{{"H100 PCIe", 756, 51},
                                        {"H100", 989, 67},
                                        {"H200", 989, 67},
                                        {"A100", 312, 19.5},
                                        {"V100", 125, 15.7},
                                        {"A40", 150, 37}}};

/// Of a product [m, k] @ [k, n] by the engine's own code; `transposed` as weights lie in memory, [n, k].
struct Product {
  std::int64_t m, k, n;
  bool transposed;
};

/// Best of a few: what else runs on the machine only slows it.
double measured_flops(const Product& p, at::ScalarType dtype, int repeats) {
  const auto a = at::ones({p.m, p.k}, dtype);
  const auto b = p.transposed ? at::ones({p.n, p.k}, dtype).t() : at::ones({p.k, p.n}, dtype);
  auto out = gemm(a, b);
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    gemm_out(out, a, b);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return 2.0 * static_cast<double>(p.m * p.k * p.n) / best;
}

/// No one shape is the fastest for every library, type and cache: the best of several, as blocks and heads have them.
double measured_cpu_flops(at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  // A type without a fast kernel here (fp16 on most CPUs) would take half a minute and tell nothing.
  if (measured_flops({384, 384, 384, false}, dtype, 2) < 8e9) return 0;
  constexpr std::array<Product, 6> kProducts{{{1536, 1536, 1536, false},
                                              {1536, 1536, 1536, true},
                                              {1024, 256, 1024, true},
                                              {1024, 1024, 256, false},
                                              {1024, 768, 3072, true},
                                              {512, 512, 512, false}}};
  double best = 0;
  for (const auto& product : kProducts) best = std::max(best, measured_flops(product, dtype, 3));
  return best;
}

}  // namespace

double peak_flops(const DeviceChoice& device, at::ScalarType dtype) {
  if (device.device.is_cpu()) return measured_cpu_flops(dtype);
  for (const auto& gpu : kGpus) {
    if (device.description.find(gpu.name) == std::string::npos) continue;
    return 1e12 * (dtype == at::kFloat ? gpu.float32_tflops : gpu.bf16_tflops);
  }
  return 0;
}

}  // namespace fsdp
