#include "lib/run/throughput.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "lib/model/attention.hpp"
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

MemoryEstimate estimate_memory(ModelRuntime& runtime, std::int64_t rows, std::int64_t length, int accumulation_steps) {
  auto& engine = runtime.engine();
  const auto& config = runtime.decoder().config;
  const auto& policy = runtime.policy();
  const auto shards = static_cast<double>(runtime.mesh().shard->size());
  const auto param_bytes = static_cast<double>(c10::elementSize(policy.precision.param_dtype));
  const bool local = accumulation_steps > 1 && !policy.reduce_every_micro_batch;
  const double grad_bytes = local ? 4.0 : static_cast<double>(c10::elementSize(policy.precision.reduce_dtype));
  double total = 0;
  double root = 0;
  std::vector<double> blocks(static_cast<std::size_t>(config.num_layers), 0.0);
  for (std::size_t i = 0; i < engine.num_parameters(); ++i) {
    const auto n = static_cast<double>(engine.layout(i).elements());
    const int block = runtime.decoder().parameters[i].block;
    total += n;
    (block < 0 ? root : blocks[static_cast<std::size_t>(block)]) += n;
  }
  const double block = blocks.empty() ? 0 : *std::max_element(blocks.begin(), blocks.end());
  MemoryEstimate estimate;
  const double wire = policy.precision.param_dtype == at::kFloat ? 0.0 : param_bytes;
  estimate.states = total / shards * (16.0 + wire);
  const bool in_place = engine.uses_peer_memory();
  if (!in_place && shards > 1) {
    const double units = gathers_again_in_backward(policy.sharding) ? root + 2 * block : total;
    estimate.gathered = units * param_bytes;
  }
  estimate.gradients = local || (shards == 1 && !in_place) ? total * grad_bytes : (root + 2 * block) * grad_bytes;
  if (shards == 1 && grad_bytes == 4.0) estimate.gradients = 0;  // the full gradient is the shard
  const auto tokens = static_cast<double>(rows * length);
  const auto d = static_cast<double>(config.embed_size);
  const auto f = static_cast<double>(config.ffn_hidden_size);
  const double scores = length <= kShortRow ? static_cast<double>(config.num_heads) * static_cast<double>(length) : 0.0;
  // What a block keeps: GPT its input, sum, q, k, v, heads, norms and pre-activation; Llama gate and up instead.
  const auto queries = static_cast<double>(config.num_heads * config.head_width());
  const auto keys = static_cast<double>(config.kv_heads() * config.head_width());
  const bool llama = config.architecture == Architecture::llama;
  const double kept_width = llama ? 2 * d + 2 * queries + 2 * keys + 2 * f : 8 * d + 2 * f;
  const double per_block = tokens * (kept_width + scores) * param_bytes;
  const auto layers = static_cast<double>(config.num_layers);
  const double kept = policy.checkpoint_every > 0 ? std::ceil(layers / policy.checkpoint_every) : 0;
  estimate.activations = (layers - kept) * per_block + kept * tokens * d * param_bytes + (kept > 0 ? per_block : 0) +
                         tokens * (2 * f + 3 * d + scores) * param_bytes;
  const auto row_bytes = static_cast<double>((config.vocab_size + 63) / 64 * 64) * param_bytes;
  estimate.logits = std::min(tokens, std::max(256.0, 104.0 * 1048576.0 / row_bytes)) * row_bytes;
  return estimate;
}

double machine_memory_bytes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page = ::sysconf(_SC_PAGE_SIZE);
  return pages > 0 && page > 0 ? static_cast<double>(pages) * static_cast<double>(page) : 0.0;
}

}  // namespace fsdp
