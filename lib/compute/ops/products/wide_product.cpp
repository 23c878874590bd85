#include "lib/compute/ops/products/wide_product.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "lib/base/process/variables.hpp"
#include "lib/base/types/error.hpp"
#include "lib/compute/ops/products/gemm.hpp"
#include "lib/compute/ops/updates/companion.hpp"

namespace fsdp {
namespace {

// Panel sizes: the product takes far longer than the copies of its operands, and the buffers stay in a cache.
constexpr std::int64_t kRows = 1024, kColumns = 512, kInner = 2048;
constexpr std::int64_t kBatchElements = std::int64_t{1} << 20;

struct NativeTypes {
  bool bf16 = true, fp16 = true;
};

NativeTypes find_native_types() {
  if (const auto wish = variable_value("FSDP_BF16_GEMM")) {
    const bool native = wish != "widened";
    return {native, native};
  }
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool known = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0;
  const bool amx_bf16 = known && (edx & 1U << 22) != 0;
  const bool avx512_fp16 = known && __builtin_cpu_supports("avx512f") && (edx & 1U << 23) != 0;
  // avx512_bf16 runs at half of float32's rate on Intel and at twice the rate on AMD.
  const bool full_rate = __builtin_cpu_supports("avx512bf16") && !__builtin_cpu_is("intel");
  const bool allowed = onednn_may_use(OnednnLevel::avx512_bf16);
  return {allowed && (amx_bf16 || full_rate), allowed && avx512_fp16};
#elif defined(__aarch64__)
  // With BFMMLA ATen asks oneDNN, which asks Arm's Compute Library; without it come plain loops. fp16 goes to the same
  // library only where the operands are dense, and to oneDNN's reference code elsewhere and on all older processors.
  return {(::getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0, false};
#else
  return {};
#endif
}

void multiply_batches(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const WidePanel& panel,
                      const WideMultiply& multiply) {
  for (std::int64_t first = 0; first < a.size(0); first += panel.batch) {
    const auto count = std::min(panel.batch, a.size(0) - first);
    const auto a_part = a.narrow(0, first, count), b_part = b.narrow(0, first, count);
    auto out_part = out.narrow(0, first, count);
    auto sum = panel.sum(out_part);
    multiply(sum, panel.first(a_part).copy_(a_part), panel.second(b_part).copy_(b_part), false);
    out_part.copy_(sum);
  }
}

}  // namespace

bool is_upcast(at::ScalarType dtype) {
  static const NativeTypes native = find_native_types();
  return (dtype == at::kBFloat16 && !native.bf16) || (dtype == at::kHalf && !native.fp16);
}

WidePanel::WidePanel(const at::Tensor& out, const at::Tensor& a) {
  rows = out.size(-2), inner = a.size(-1), columns = out.size(-1);
  if (a.dim() == 3) {
    const auto elements = rows * inner + inner * columns + rows * columns;
    batch = std::clamp<std::int64_t>(kBatchElements / std::max<std::int64_t>(1, elements), 1, a.size(0));
  } else {
    rows = std::min(rows, kRows), inner = std::min(inner, kInner), columns = std::min(columns, kColumns);
  }
  room = at::empty({batch * (rows * inner + inner * columns + rows * columns)}, out.options().dtype(at::kFloat));
}

at::Tensor WidePanel::place(std::int64_t offset, const at::Tensor& like) const {
  const bool turned = like.stride(-1) != 1 && like.stride(-2) == 1;
  const auto place = room.narrow(0, offset, like.numel());
  if (!turned) return place.view(like.sizes());
  return place.view(like.transpose(-2, -1).sizes()).transpose(-2, -1);
}

void widened_product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add,
                     const WideMultiply& multiply) {
  if (out.numel() == 0) return;
  if (a.size(-1) == 0) {
    if (!add) out.zero_();
    return;
  }
  const WidePanel panel(out, a);
  const auto kept_b = wide_copy_of(b);
  if (a.dim() == 3) return multiply_batches(out, a, b, panel, multiply);
  // If the inner dimension is not split, a panel of b serves all panels of a; if a is one panel, it serves all panels
  // of b.
  const bool one_inner = panel.inner == a.size(1), one_a = one_inner && panel.rows == a.size(0);
  at::Tensor wide_a, wide_b;
  for (std::int64_t column = 0; column < out.size(1); column += panel.columns) {
    const auto columns = std::min(panel.columns, out.size(1) - column);
    for (std::int64_t row = 0; row < out.size(0); row += panel.rows) {
      const auto rows = std::min(panel.rows, out.size(0) - row);
      auto out_part = out.narrow(0, row, rows).narrow(1, column, columns);
      auto sum = panel.sum(out_part);
      if (add) sum.copy_(out_part);
      for (std::int64_t from = 0; from < a.size(1); from += panel.inner) {
        const auto inner = std::min(panel.inner, a.size(1) - from);
        const auto a_part = a.narrow(0, row, rows).narrow(1, from, inner);
        const auto b_part = (kept_b.defined() ? kept_b : b).narrow(0, from, inner).narrow(1, column, columns);
        if (kept_b.defined()) {
          wide_b = b_part;
        } else if (!one_inner || row == 0) {
          wide_b = panel.second(b_part).copy_(b_part);
        }
        if (!one_a || column == 0) wide_a = panel.first(a_part).copy_(a_part);
        multiply(sum, wide_a, wide_b, add || from > 0);
      }
      out_part.copy_(sum);
    }
  }
}

at::Tensor with_wide_copy(const at::Tensor& half, const at::Tensor& wide) {
  if (half.is_meta()) return half;
  if (!half.is_contiguous() || !wide.is_contiguous() || half.sizes() != wide.sizes() || half.element_size() != 2 ||
      wide.scalar_type() != at::kFloat) {
    throw RuntimeFailure("a float32 copy of weights has another shape or type than it should");
  }
  return with_companion(half, wide);
}

at::Tensor wide_copy_of(const at::Tensor& view) {
  if (view.element_size() != 2) return {};
  const auto wide = companion_of(view);
  return wide.defined() ? wide.as_strided(view.sizes(), view.strides(), view.storage_offset()) : wide;
}

}  // namespace fsdp
