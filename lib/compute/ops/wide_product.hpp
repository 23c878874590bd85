#pragma once
// Products of 16-bit operands on processors that do not multiply them at full speed: a panel at a time in float32.
//
// Without bf16 or fp16 instructions ATen falls back to plain loops, 30 to 100 times slower than float32; and where
// Intel's processors have avx512_bf16 but no AMX, it runs at half of float32's rate. Widening costs some percent of the
// float32 product. Sums are float32 and rounded once, as the native instructions do.
#include <ATen/core/Tensor.h>

#include <functional>

namespace fsdp {

/// Whether products of this type are widened on this processor: from its features alone, never by timing, so that a run
/// gives the same bits each time. FSDP_BF16_GEMM=native|widened overrides it, for fp16 too.
bool is_widened(at::ScalarType dtype);

/// float32 product: out (+)= a @ b, 2-D or (not added) 3-D.
using WideMultiply = std::function<void(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add)>;

/// Room for a panel of each operand and of the result: one allocation of at most about 20 MiB, or what one matrix of a
/// batch needs.
struct WidePanel {
  /// Of the largest panel that out (+)= a @ ... is cut into.
  WidePanel(const at::Tensor& out, const at::Tensor& a);
  at::Tensor room;
  std::int64_t batch = 1, rows = 0, inner = 0, columns = 0;

  /// A float32 tensor in the room, whose fast dimension is that of `like`: a copy then reads and writes rows.
  at::Tensor first(const at::Tensor& like) const { return place(0, like); }
  at::Tensor second(const at::Tensor& like) const { return place(batch * rows * inner, like); }
  at::Tensor sum(const at::Tensor& like) const { return place(batch * (rows + columns) * inner, like); }

 private:
  at::Tensor place(std::int64_t offset, const at::Tensor& like) const;
};

/// out (+)= a @ b, 16-bit: 2-D, or 3-D and not added; any strides.
void widened_product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add, const WideMultiply& multiply);

}  // namespace fsdp
