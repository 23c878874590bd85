#include "lib/tensor/gemm.hpp"

#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <cstdint>
#include <cstdlib>

#include "lib/tensor/memory_recorder.hpp"

#ifdef FSDP_HAS_MKLDNN_MATMUL
// Exported by libtorch_cpu, declared in no installed header; CMake found it in this LibTorch.
namespace at::native {
void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta, float alpha);
}
#endif

namespace fsdp {
namespace {

bool choose_onednn() {
#ifdef FSDP_HAS_MKLDNN_MATMUL
  if (const char* wish = std::getenv("FSDP_FLOAT32_GEMM")) return std::string_view(wish) == "onednn";
#if defined(__x86_64__) || defined(__i386__)
  return !__builtin_cpu_is("intel") && __builtin_cpu_supports("avx512f");
#endif
#endif
  return false;
}

/// Finding a oneDNN primitive takes some 30 us, which a small product does not win back. Depends on sizes alone.
constexpr std::int64_t kSmallProduct = std::int64_t{1} << 22;  // multiply-adds

#if defined(__x86_64__) || defined(__i386__)
bool onednn_multiplies_bf16() { return __builtin_cpu_supports("avx512bw"); }
#else
bool onednn_multiplies_bf16() { return false; }
#endif

/// Rows or columns that lie one after the other: what oneDNN takes as it is. Anything else ATen copies for it.
bool is_plain(const at::Tensor& x) { return x.is_contiguous() || (x.dim() == 2 && x.t().is_contiguous()); }

bool use_onednn(const at::Tensor& a, const at::Tensor& b) {
  static const bool chosen = choose_onednn();
  return chosen && a.scalar_type() == at::kFloat && runs_on_host(a.device()) && a.numel() * b.size(-1) >= kSmallProduct;
}

void onednn([[maybe_unused]] const at::Tensor& out, [[maybe_unused]] const at::Tensor& a,
            [[maybe_unused]] const at::Tensor& b, [[maybe_unused]] float beta) {
#ifdef FSDP_HAS_MKLDNN_MATMUL
  if (!simulating()) at::native::mkldnn_matmul(a, b, out, beta, 1.0f);
#endif
}

/// What oneDNN allocates during a product, in a simulated run: copies of strided operands, and blocks into which each
/// thread packs operands. The blocks' sizes follow from oneDNN's own choice of tiles; these are typical ones on
/// AVX-512, measured, and below 1 MiB a thread in any case.
void simulate_scratch(const at::Tensor& a, const at::Tensor& b) {
  simulate_blas_workspace();
  if (!simulating() || !runs_on_host(a.device())) return;
  const bool wide = use_onednn(a, b);
  if (!wide && !(a.scalar_type() == at::kBFloat16 && onednn_multiplies_bf16())) return;
  constexpr std::int64_t kKiB = 1024;
  const MemoryScope scope(MemoryCategory::workspace);
  at::Tensor a_copy, b_copy;
  if (wide && !is_plain(a)) a_copy = at::empty(a.sizes(), a.options());
  if (wide && !is_plain(b)) b_copy = at::empty(b.sizes(), b.options());
  const bool a_across = !a.is_contiguous() && !a_copy.defined(), b_across = !b.is_contiguous() && !b_copy.defined();
  std::int64_t per_thread = wide ? 1 * kKiB : 130 * kKiB;
  if (b_across) per_thread = wide ? 65 * kKiB : 97 * kKiB;
  if (a_across) per_thread = wide ? 460 * kKiB : 540 * kKiB;
  const auto packed = at::empty({per_thread * simulated_traits().threads}, a.options().dtype(at::kByte));
}

}  // namespace

void gemm_out(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  simulate_scratch(a, b);
  if (use_onednn(a, b)) {
    onednn(out, a, b, 0.0f);
  } else if (a.dim() == 3) {
    at::bmm_out(out, a, b);
  } else {
    at::mm_out(out, a, b);
  }
}

void gemm_add(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  simulate_scratch(a, b);
  if (use_onednn(a, b)) {
    onednn(out, a, b, 1.0f);
  } else {
    out.addmm_(a, b);
  }
}

at::Tensor gemm(const at::Tensor& a, const at::Tensor& b) {
  auto out = at::empty({a.size(0), b.size(1)}, a.options());
  simulate_scratch(a, b);
  if (!use_onednn(a, b)) {
    at::mm_out(out, a, b);
    return out;
  }
  onednn(out, a, b, 0.0f);
  return out;
}

std::string_view float32_gemm_name() {
  static const bool chosen = choose_onednn();
  return chosen ? "onednn" : "aten";
}

}  // namespace fsdp
