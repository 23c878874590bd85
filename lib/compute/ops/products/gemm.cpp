#include "lib/compute/ops/products/gemm.hpp"

#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <strings.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "lib/base/process/variables.hpp"
#include "lib/compute/ops/products/wide_product.hpp"

#ifdef FSDP_HAS_MKLDNN_MATMUL
// Exported by libtorch_cpu, declared in no installed header; CMake found it in this LibTorch.
namespace at::native {
void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta, float alpha);
}
#endif

namespace fsdp {
namespace {

bool choose_onednn() {
  if (onednn_product() == nullptr) return false;
  const auto wish = variable_value("FSDP_FLOAT32_GEMM");
#if defined(__x86_64__) || defined(__i386__)
  // LibTorch's entry fails without these instruction sets.
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
    return false;
  if (!onednn_may_use(OnednnLevel::avx512)) return false;
  if (!wish) return !__builtin_cpu_is("intel");
#endif
  return wish == "onednn";
}

bool chosen_onednn() {
  static const bool chosen = choose_onednn();
  return chosen;
}

/// Smaller products go to ATen: looking up a oneDNN primitive takes some 30 us. The choice depends on sizes alone.
constexpr std::int64_t kSmallProduct = std::int64_t{1} << 22;  // multiply-adds

/// Values of ONEDNN_MAX_CPU_ISA below the default, and their order (oneDNN documentation, "CPU Dispatcher Control").
constexpr std::array<std::pair<const char*, int>, 7> kLevels{{{"SSE41", 0},
                                                              {"AVX", 1},
                                                              {"AVX2", 2},
                                                              {"AVX2_VNNI", 3},
                                                              {"AVX2_VNNI_2", 3},
                                                              {"AVX512_CORE", 4},
                                                              {"AVX512_CORE_VNNI", 5}}};

}  // namespace

OnednnProduct* onednn_product() {
#ifdef FSDP_HAS_MKLDNN_MATMUL
  return &at::native::mkldnn_matmul;
#else
  return nullptr;
#endif
}

bool goes_to_onednn(const at::Tensor& a, const at::Tensor& b) {
  return chosen_onednn() && a.scalar_type() == at::kFloat && a.numel() * b.size(-1) >= kSmallProduct;
}

void aten_product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) {
  if (a.dim() == 3) {
    at::bmm_out(out, a, b);
  } else if (add) {
    out.addmm_(a, b);
  } else {
    at::mm_out(out, a, b);
  }
}

void host_product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) {
  if (is_upcast(a.scalar_type())) {
    widened_product(out, a, b, add, host_product);
  } else if (goes_to_onednn(a, b)) {
    onednn_product()(a, b, out, add ? 1.0f : 0.0f, 1.0f);
  } else {
    aten_product(out, a, b, add);
  }
}

std::string_view float32_gemm_name() { return chosen_onednn() ? "onednn" : "aten"; }

std::string host_gemm_description(at::ScalarType dtype) {
  const std::string wide = "float32 by " + std::string(float32_gemm_name());
  if (dtype == at::kFloat) return wide;
  const std::string name = dtype == at::kBFloat16 ? "bf16" : "fp16";
  return is_upcast(dtype) ? name + " through " + wide : name + " natively";
}

bool onednn_may_use(OnednnLevel level) {
  const char* wish = std::getenv("ONEDNN_MAX_CPU_ISA");
  if (wish == nullptr) wish = std::getenv("DNNL_MAX_CPU_ISA");
  if (wish == nullptr) return true;
  for (const auto& [name, most] : kLevels) {
    if (::strcasecmp(wish, name) == 0) return most >= static_cast<int>(level);
  }
  return true;
}

}  // namespace fsdp
