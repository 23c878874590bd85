#include "lib/tensor/gemm.hpp"

#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <cstdint>
#include <cstdlib>

#include "lib/tensor/gemm_scratch.hpp"
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

/// What oneDNN allocates during a product, in a simulated run.
void simulate_scratch(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) {
  simulate_blas_workspace();
  if (!simulating() || !runs_on_host(a.device())) return;
  const MemoryScope scope(MemoryCategory::workspace);
  ProductKind kind{use_onednn(a, b), add, nullptr};
#ifdef FSDP_HAS_MKLDNN_MATMUL
  kind.onednn = &at::native::mkldnn_matmul;
#endif
  simulate_product_scratch(out, a, b, kind);
}

}  // namespace

void gemm_out(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  simulate_scratch(out, a, b, false);
  if (use_onednn(a, b)) {
    onednn(out, a, b, 0.0f);
  } else if (a.dim() == 3) {
    at::bmm_out(out, a, b);
  } else {
    at::mm_out(out, a, b);
  }
}

void gemm_add(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  simulate_scratch(out, a, b, true);
  if (use_onednn(a, b)) {
    onednn(out, a, b, 1.0f);
  } else {
    out.addmm_(a, b);
  }
}

at::Tensor gemm(const at::Tensor& a, const at::Tensor& b) {
  auto out = at::empty({a.size(0), b.size(1)}, a.options());
  simulate_scratch(out, a, b, false);
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
