#pragma once
// Matrix products, on the host through the fastest float32 code that LibTorch carries for this processor.
//
// ATen multiplies float32 with MKL, which uses AVX2 at most on processors that Intel did not make; oneDNN, also inside
// LibTorch, uses AVX-512 wherever there is one: 2.0 to 2.4 times as fast on AMD's Zen 5. 16-bit types go through ATen
// where the processor has instructions for them, and through float32 elsewhere (wide_product.hpp). The choice is made
// once from the processor, never by timing, so that a run gives the same bits each time. FSDP_FLOAT32_GEMM=aten|onednn
// overrides it.
#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

namespace fsdp {

/// out (+)= a @ b. 2-D [m, k] @ [k, n] or 3-D [batch, m, k] @ [batch, k, n], which is not added; any strides; `out` has
/// its final shape.
void host_product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add);

/// out (+)= a @ b by ATen's operators, on any device.
void aten_product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add);

/// Library that multiplies float32 on the host: "onednn" or "aten".
std::string_view float32_gemm_name();

/// How host_product() multiplies factors of this type: "float32 by onednn", "bf16 natively", "bf16 through float32 by
/// aten".
std::string host_gemm_description(at::ScalarType dtype);

/// True if host_product() calls oneDNN directly for these float32 factors, rather than through ATen.
bool goes_to_onednn(const at::Tensor& a, const at::Tensor& b);

/// LibTorch's entry to oneDNN: out = alpha * a @ b + beta * out.
using OnednnProduct = void(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta, float alpha);
/// Null if this LibTorch does not export the entry.
OnednnProduct* onednn_product();

/// Instruction sets that products need, numbered in oneDNN's order.
enum class OnednnLevel { avx512 = 4, avx512_bf16 = 6 };

/// False if ONEDNN_MAX_CPU_ISA (or DNNL_MAX_CPU_ISA) limits oneDNN to less than `level`. LibTorch's entries to oneDNN
/// fail below the level that they need, whatever the processor has.
bool onednn_may_use(OnednnLevel level);

}  // namespace fsdp
