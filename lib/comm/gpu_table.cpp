#include "lib/comm/gpu_table.hpp"

#include <array>

namespace fsdp {
namespace {

// Total: what the driver reports as the device's total memory (nvidia-smi shows a little more: it counts the part set
// aside for ECC and the driver). PyTorch's out-of-memory messages quote the same number: 39.39 GiB (A100 40 GB), 79.15
// GiB (A100 80 GB), 79.10 GiB (H100), 139.80 GiB (H200), 31.73 GiB (V100 32 GB), 15.77 GiB (V100 16 GB), 44.40 GiB
// (L40S, A40), 22.05 GiB (L4, A10). Multiprocessors and compute capability: NVIDIA's CUDA GPU tables.
constexpr std::array kGpus{
    GpuFacts{"a100-40g", 40338, 80, 108}, GpuFacts{"a100-80g", 81050, 80, 108}, GpuFacts{"h100", 81000, 90, 132},
    GpuFacts{"h200", 143155, 90, 132},    GpuFacts{"b200", 182000, 100, 148},   GpuFacts{"gh200-96g", 96700, 90, 132},
    GpuFacts{"v100-16g", 16150, 70, 80},  GpuFacts{"v100-32g", 32490, 70, 80},  GpuFacts{"l40s", 45465, 89, 142},
    GpuFacts{"l4", 22580, 89, 58},        GpuFacts{"a40", 45465, 86, 84},       GpuFacts{"a10", 22580, 86, 72},
    GpuFacts{"a30", 24060, 80, 56},       GpuFacts{"t4", 14910, 75, 40},        GpuFacts{"rtx-3090", 24110, 86, 82},
    GpuFacts{"rtx-4090", 24080, 89, 128},
};

struct PeakOfProduct {
  const char* product;
  GpuPeak peak;
};

// Dense figures of NVIDIA's data sheets (SXM parts unless named).
constexpr std::array<PeakOfProduct, 6> kPeaks{{{"H100 PCIe", {756, 51}},
                                               {"H100", {989, 67}},
                                               {"H200", {989, 67}},
                                               {"A100", {312, 19.5}},
                                               {"V100", {125, 15.7}},
                                               {"A40", {150, 37}}}};

}  // namespace

std::span<const GpuFacts> known_gpus() { return kGpus; }

GpuPeak peak_of_gpu(std::string_view device_name) {
  for (const auto& [product, peak] : kPeaks) {
    if (device_name.find(product) != std::string_view::npos) return peak;
  }
  return {};
}

}  // namespace fsdp
