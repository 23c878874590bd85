#pragma once
// 16-bit matrix products through float32, for processors that do not multiply 16-bit types at full speed: one panel of
// each operand at a time is upcast to float32.
//
// Without bf16 or fp16 instructions ATen falls back to plain loops, 30 to 100 times slower than float32; and where
// Intel's processors have avx512_bf16 but no AMX, it runs at half of float32's rate. Upcasting costs a few percent of
// the float32 product. Sums are float32 and rounded once, as with the native instructions.
#include <ATen/core/Tensor.h>

#include <functional>

namespace fsdp {

/// True if products of this dtype go through float32 on this processor. Depends on the processor's features alone,
/// never on timing, so that a run gives the same bits each time. FSDP_BF16_GEMM=native|widened overrides it, for fp16
/// too.
bool is_upcast(at::ScalarType dtype);

/// float32 product: out (+)= a @ b, 2-D or (not added) 3-D.
using WideMultiply = std::function<void(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add)>;

/// Float32 buffers for one panel of each operand and of the result: a single allocation of at most about 20 MiB, or of
/// what one matrix of a batch needs.
struct WidePanel {
  /// Allocates for the largest panel of the product out (+)= a @ b.
  WidePanel(const at::Tensor& out, const at::Tensor& a);
  at::Tensor room;
  std::int64_t batch = 1, rows = 0, inner = 0, columns = 0;

  /// A float32 view of the buffer with the sizes of `like` and the same contiguous dimension, so that copies run along
  /// it.
  at::Tensor first(const at::Tensor& like) const { return place(0, like); }
  at::Tensor second(const at::Tensor& like) const { return place(batch * rows * inner, like); }
  at::Tensor sum(const at::Tensor& like) const { return place(batch * (rows + columns) * inner, like); }

 private:
  at::Tensor place(std::int64_t offset, const at::Tensor& like) const;
};

/// out (+)= a @ b, 16-bit: 2-D, or 3-D and not added; any strides.
void widened_product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add, const WideMultiply& multiply);

/// A tensor over the memory of `half` whose storage refers to its float32 copy `wide` and keeps both alive. Products
/// then read the copy instead of upcasting the weight each time.
/// \param half, wide  contiguous, of one shape, 16 bits and float32
/// \return `half` itself if it is a meta tensor. \throws RuntimeFailure if shapes or dtypes do not fit
at::Tensor with_wide_copy(const at::Tensor& half, const at::Tensor& wide);

/// The part of the float32 copy that `view` covers, with its sizes and strides; undefined if there is no copy.
at::Tensor wide_copy_of(const at::Tensor& view);

}  // namespace fsdp
