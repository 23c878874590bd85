#pragma once
// Matrix products through the fastest float32 code that LibTorch carries for this processor.
//
// ATen multiplies float32 with MKL, which uses AVX2 at most on processors that Intel did not make; oneDNN, also inside
// LibTorch, uses AVX-512 wherever there is one: 2.0 to 2.4 times as fast on AMD's Zen 5. Every other dtype and device
// goes through ATen, whose own choice is right. The choice is made once from the processor, never by timing, so that a
// run gives the same bits each time. FSDP_FLOAT32_GEMM=aten|onednn overrides it.
#include <ATen/core/Tensor.h>

#include <string_view>

namespace fsdp {

/// out = a @ b. 2-D [m, k] @ [k, n] or 3-D [batch, m, k] @ [batch, k, n]; any strides; `out` has its final shape.
void gemm_out(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);
/// out += a @ b, 2-D, all of one dtype.
void gemm_add(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);
/// a @ b as a new contiguous tensor, 2-D.
at::Tensor gemm(const at::Tensor& a, const at::Tensor& b);

/// What multiplies float32 on the CPU: "onednn" or "aten".
std::string_view float32_gemm_name();

}  // namespace fsdp
