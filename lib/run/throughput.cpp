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

double measured_cpu_flops(at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const auto measure = [dtype](std::int64_t n, int repeats) {
    const auto a = at::ones({n, n}, dtype);
    auto out = gemm(a, a);
    double best = 1e30;
    for (int i = 0; i < repeats; ++i) {
      const auto start = std::chrono::steady_clock::now();
      gemm_out(out, a, a);
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return 2.0 * static_cast<double>(n * n * n) / best;
  };
  // A type without a fast kernel here (fp16 on most CPUs) would take half a minute and tell nothing.
  if (measure(384, 2) < 8e9) return 0;
  return measure(1536, 3);
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
