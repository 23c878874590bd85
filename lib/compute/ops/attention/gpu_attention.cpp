#include "lib/compute/ops/attention/gpu_attention.hpp"

#include "lib/base/process/variables.hpp"

namespace fsdp {
namespace {

/// Alignment of the head size that CUTLASS needs: sdp_utils.cpp, minimum_gemm_alignment.
std::int64_t head_alignment(int compute_capability, bool narrow) {
  return narrow ? 8 : (compute_capability >= 80 ? 4 : 1);
}

}  // namespace

bool is_small_generation(int capability) { return (capability > 80 && capability < 90) || capability >= 120; }

std::optional<GpuAttention> asked_gpu_attention() {
  const auto word = variable_value("FSDP_CUDA_ATTENTION");
  if (!word) return std::nullopt;
  if (word == "cudnn") return GpuAttention::cudnn;
  if (word == "flash") return GpuAttention::flash;
  if (word == "efficient") return GpuAttention::memory_efficient;
  return GpuAttention::blocks;
}

GpuAttention choose_gpu_attention(const GpuAttentionTraits& gpu, const AttentionShape& s, at::ScalarType dtype) {
  if (s.dropout > 0) return GpuAttention::formula;
  if (s.softcap > 0) return GpuAttention::blocks;  // PyTorch's flash is built without caps
  const bool narrow = c10::elementSize(dtype) == 2, whole = s.is_plain();
  const int capability = gpu.compute_capability;
  const bool even_heads = s.head_size % 8 == 0;
  const bool backward_missing = is_small_generation(capability) && s.head_size > 192 && s.head_size <= 224;
  const auto takes = [&](GpuAttention kernel) {
    if (kernel == GpuAttention::cudnn)
      return narrow && capability >= 80 && gpu.has_cudnn && whole && s.head_size <= 128 && even_heads;
    if (kernel == GpuAttention::flash)
      return narrow && capability >= 80 && s.head_size <= 256 && even_heads && !backward_missing;
    // The memory-efficient kernel has no bfloat16 below 8.0.
    if (kernel == GpuAttention::memory_efficient)
      return whole && s.group() == 1 && s.head_size % head_alignment(capability, narrow) == 0 &&
             !(dtype == at::kBFloat16 && capability < 80);
    return true;
  };
  if (gpu.asked && takes(*gpu.asked)) return *gpu.asked;
  // Hopper and the data-center Blackwells: check_prefer_cudnn_attention.
  const bool prefers_cudnn = capability >= 90 && capability < 110 && s.query_length % 64 == 0;
  if (prefers_cudnn && takes(GpuAttention::cudnn)) return GpuAttention::cudnn;
  if (takes(GpuAttention::flash)) return GpuAttention::flash;
  return takes(GpuAttention::memory_efficient) ? GpuAttention::memory_efficient : GpuAttention::blocks;
}

at::ScalarType gpu_block_type(const GpuAttentionTraits& gpu, at::ScalarType dtype) {
  return dtype == at::kBFloat16 && gpu.compute_capability < 80 ? at::kFloat : dtype;  // CUDABlas.cpp, bgemm
}

bool packs_by_flash(const GpuAttentionTraits& gpu, const AttentionShape& s, at::ScalarType dtype) {
  auto longest = s;
  longest.packing = nullptr;
  longest.query_length = s.packing->longest;
  const auto kernel = choose_gpu_attention(gpu, longest, dtype);
  return kernel == GpuAttention::flash || kernel == GpuAttention::cudnn;  // flash supports all shapes that cuDNN does
}

}  // namespace fsdp
