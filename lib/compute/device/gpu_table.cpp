#include "lib/compute/device/gpu_table.hpp"

#include <array>
#include <cctype>
#include <cmath>
#include <string>

namespace fsdp {
namespace {

// Total: what the driver reports as the device's total memory (nvidia-smi shows a little more: it counts the part set
// aside for ECC and the driver). PyTorch's out-of-memory messages quote the same number: 39.39 GiB (A100 40 GB), 79.15
// GiB (A100 80 GB), 79.10 GiB (H100), 139.80 GiB (H200), 31.73 GiB (V100 32 GB), 15.77 GiB (V100 16 GB), 44.40 GiB
// (L40S, A40), 22.05 GiB (L4, A10). Multiprocessors and compute capability: NVIDIA's CUDA GPU tables. Products, memory
// and links: NVIDIA's data sheets, dense figures, SXM parts where there are any.
constexpr std::array kGpus{
    GpuFacts{"a100-40g", 40338, 80, 108, {312, 19.5}, 1555, 300},
    GpuFacts{"a100-80g", 81050, 80, 108, {312, 19.5}, 2039, 300},
    GpuFacts{"h100", 81000, 90, 132, {989, 67}, 3350, 450},
    GpuFacts{"h200", 143155, 90, 132, {989, 67}, 4800, 450},
    GpuFacts{"b200", 182000, 100, 148, {2250, 75}, 8000, 900},
    GpuFacts{"gh200-96g", 96700, 90, 132, {989, 67}, 4000, 450},
    GpuFacts{"v100-16g", 16150, 70, 80, {125, 15.7}, 900, 150},
    GpuFacts{"v100-32g", 32490, 70, 80, {125, 15.7}, 900, 150},
    GpuFacts{"l40s", 45465, 89, 142, {362, 91.6}, 864, 32},
    GpuFacts{"l4", 22580, 89, 58, {121, 30.3}, 300, 32},
    GpuFacts{"a40", 45465, 86, 84, {150, 37.4}, 696, 32},
    GpuFacts{"a10", 22580, 86, 72, {125, 31.2}, 600, 32},
    GpuFacts{"a30", 24060, 80, 56, {165, 10.3}, 933, 32},
    GpuFacts{"t4", 14910, 75, 40, {65, 8.1}, 320, 16},
    GpuFacts{"rtx-3090", 24110, 86, 82, {71, 35.6}, 936, 32},
    GpuFacts{"rtx-4090", 24080, 89, 128, {165, 82.6}, 1008, 32},
};

/// "NVIDIA A100-SXM4-40GB": " nvidia a100 sxm4 40gb ".
std::string words_of(std::string_view text) {
  std::string out = " ";
  for (const char c : text) {
    const bool is_word = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (is_word || out.back() != ' ') out += is_word ? static_cast<char>(std::tolower(c)) : ' ';
  }
  return out.back() == ' ' ? out : out + " ";
}

/// The word that its driver calls it by, without its memory: " a100 ".
std::string make_of(const GpuFacts& gpu) {
  const std::string_view name = gpu.name;
  return words_of(name.starts_with("rtx") ? name : name.substr(0, name.find('-')));
}

bool is_called(const std::string& words, const GpuFacts& gpu) { return words.find(make_of(gpu)) != std::string::npos; }

}  // namespace

std::span<const GpuFacts> known_gpus() { return kGpus; }

const GpuFacts& facts_of_gpu(std::string_view device_name, std::int64_t total_bytes, int compute_capability) {
  const auto words = words_of(device_name);
  const auto distance = [&](const GpuFacts& gpu) {
    return std::abs(static_cast<double>(gpu.total_mib) * 1048576.0 - static_cast<double>(total_bytes));
  };
  const GpuFacts* best = nullptr;
  bool best_is_called = false;
  for (const auto& gpu : kGpus) {
    const bool called = is_called(words, gpu);
    if (!called && (best_is_called || gpu.compute_capability != compute_capability)) continue;
    if (best != nullptr && called == best_is_called && distance(gpu) >= distance(*best)) continue;
    best = &gpu;
    best_is_called = called;
  }
  return best != nullptr ? *best : kGpus.front();
}

GpuPeak peak_of_gpu(std::string_view device_name) {
  if (device_name.find("H100 PCIe") != std::string_view::npos) return {756, 51};
  const auto words = words_of(device_name);
  for (const auto& gpu : kGpus) {
    if (is_called(words, gpu)) return gpu.peak;
  }
  return {};
}

}  // namespace fsdp
