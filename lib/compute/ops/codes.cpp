// Casts to fp8 in two passes (on the CPU, to emulate a GPU's fp8 training), and dequantization of NF4.
#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "lib/compute/kernels/eight_bit_code.hpp"
#include "lib/compute/ops/fused_args.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/compute/ops/products/fp8.hpp"
#include "lib/compute/ops/row_loops.hpp"
#include "lib/compute/tensor/memory_scope.hpp"

namespace fsdp {

using namespace detail;
using fused::kFp8LeastLargest;
using kernels::kEightBitBlock, kernels::kNf4Block;

namespace {

template <typename Body>
void with_elements(const at::Tensor& x, const Body& body) {
  switch (kernel_type(x)) {
    case kernels::Type::f32:
      return body(x.const_data_ptr<float>());
    case kernels::Type::bf16:
      return body(x.const_data_ptr<c10::BFloat16>());
    case kernels::Type::f16:
      return body(x.const_data_ptr<c10::Half>());
  }
}

/// Bits of the absolute value, which order floats; NaNs are larger than all numbers.
std::uint32_t bits_of_size(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7fffffffu; }

struct CastArgs {
  std::uint8_t *rows, *columns;  ///< either may be null
  std::int64_t num_rows, padded_rows, num_columns, stride;
  float scale, most;
  bool e5m2;
};

std::uint8_t code_of(const CastArgs& a, float x) {
  const float scaled = x * a.scale;
  const float clamped = std::isnan(scaled) ? scaled : std::clamp(scaled, -a.most, a.most);
  return a.e5m2 ? c10::detail::fp8e5m2_from_fp32_value(clamped) : c10::detail::fp8e4m3fn_from_fp32_value(clamped);
}

template <typename T>
void cast_row(const CastArgs& a, const T* x, std::int64_t row) {
  for (std::int64_t c = 0; c < a.num_columns; ++c) {
    const auto code = row < a.num_rows ? code_of(a, static_cast<float>(x[row * a.stride + c])) : std::uint8_t{0};
    if (a.rows != nullptr && row < a.num_rows) a.rows[row * a.num_columns + c] = code;
    if (a.columns != nullptr) a.columns[c * a.padded_rows + row] = code;
  }
}

/// A pass with the sizes and the address of x.
fused::Fp8 fp8_pass_of(const at::Tensor& x_RC) {
  fused::Fp8 pass{};
  pass.type = kernel_type(x_RC);
  pass.x_RC = address_of(x_RC);
  pass.stride = x_RC.stride(0);
  pass.rows = x_RC.size(0);
  pass.padded_rows = fp8_padded(pass.rows);
  pass.columns = static_cast<int>(x_RC.size(1));
  pass.packed = are_packed(pass.stride, {pass.x_RC});
  return pass;
}

/// True if the fused kernels support x.
bool fits_fp8(const Ops& ops, const at::Tensor& x_RC) {
  return has_kernel_type(x_RC) && !ops.is_on_host(x_RC) && x_RC.stride(1) == 1 && x_RC.numel() > 0 &&
         x_RC.size(1) % kFp8Multiple == 0;
}

std::int64_t count_blocks(std::int64_t n, std::int64_t block) { return (n + block - 1) / block; }

/// Copies a table of the host to the device of `like`.
template <std::size_t N>
at::Tensor table_beside(const at::Tensor& like, const std::array<float, N>& values) {
  auto* data = const_cast<float*>(values.data());  // NOLINT: from_blob wants it so, nothing writes there
  return at::from_blob(data, {static_cast<std::int64_t>(N)}, at::TensorOptions(at::kFloat)).to(like.device());
}

}  // namespace

std::string Ops::fp8_gemm_description() const { return "float8 emulated in float32"; }

std::string Ops::fp8_problem() const { return {}; }

Fp8Matrix Ops::to_fp8(const at::Tensor& x_RC, Fp8Format format, Fp8Sides sides) const {
  const auto largest = fp8_largest(x_RC);
  auto made = fp8_cast(x_RC, largest, format, sides);
  made.largest = largest;
  return made;
}

at::Tensor Ops::fp8_largest(const at::Tensor& x_RC) const {
  if (cpu_ != nullptr) {
    auto largest_R = at::empty({x_RC.size(0)}, x_RC.options().dtype(at::kFloat));
    launch(x_RC.size(0), row_grain(x_RC.size(1)), [&](std::int64_t begin, std::int64_t end) {
      with_elements(x_RC, [&](const auto* x) {
        for (auto row = begin; row < end; ++row) {
          std::uint32_t most = 0;
          for (std::int64_t c = 0; c < x_RC.size(1); ++c)
            most = std::max(most, bits_of_size(static_cast<float>(x[row * x_RC.stride(0) + c * x_RC.stride(1)])));
          largest_R.data_ptr<float>()[row] = std::bit_cast<float>(most);
        }
      });
    });
    return largest_R;
  }
  if (fused_ != nullptr && fits_fp8(*this, x_RC)) {
    auto pass = fp8_pass_of(x_RC);
    pass.blocks = static_cast<int>(fused::fp8_blocks(pass.rows));
    auto largest = at::empty({pass.blocks}, x_RC.options().dtype(at::kFloat));
    pass.largest = floats_in(largest);
    fused_->fp8_largest(pass);
    return largest;
  }
  // Operators that support meta tensors.
  return at::linalg_vector_norm(x_RC, std::numeric_limits<double>::infinity()).to(at::kFloat).view({1});
}

Fp8Matrix Ops::fp8_cast(const at::Tensor& x, const at::Tensor& largest, Fp8Format format, Fp8Sides sides,
                        Fp8Matrix made) const {
  // x is read twice: for its largest value and for the codes.
  const double codes_of_element = sides == Fp8Sides::both ? 2 : 1;
  const auto counted = work_.pass(2 * work_.bytes({&x}) + codes_of_element * static_cast<double>(x.numel()));
  if (cpu_ != nullptr) {
    const auto x_RC = x.stride(1) == 1 ? x : x.contiguous();
    const auto codes = x_RC.options().dtype(fp8_type(format));
    CastArgs args{};
    args.num_rows = x_RC.size(0);
    args.padded_rows = fp8_padded(args.num_rows);
    args.num_columns = x_RC.size(1);
    args.stride = x_RC.stride(0);
    args.most = static_cast<float>(fp8_max(format));
    args.e5m2 = format == Fp8Format::e5m2;
    make_room(made, x_RC, codes, sides);
    if (sides != Fp8Sides::columns) args.rows = static_cast<std::uint8_t*>(made.rows_RC.data_ptr());
    if (sides != Fp8Sides::rows) args.columns = static_cast<std::uint8_t*>(made.columns_CR.data_ptr());
    launch(1, 1, [&](auto, auto) {
      std::uint32_t bits = 0;
      const auto* parts = largest.const_data_ptr<float>();
      for (std::int64_t i = 0; i < largest.numel(); ++i) bits = std::max(bits, bits_of_size(parts[i]));
      args.scale = fp8_scale(std::bit_cast<float>(bits), format);
      *made.inverse.data_ptr<float>() = 1.0f / args.scale;
    });
    launch(args.padded_rows, row_grain(args.num_columns), [&](std::int64_t begin, std::int64_t end) {
      with_elements(x_RC, [&](const auto* elements) {
        for (auto row = begin; row < end; ++row) cast_row(args, elements, row);
      });
    });
    return made;
  }
  if (fused_ != nullptr && fits_fp8(*this, x) && largest.is_contiguous()) {
    auto pass = fp8_pass_of(x);
    pass.blocks = static_cast<int>(largest.numel());
    pass.largest = const_cast<float*>(floats_of(largest));  // read only
    pass.e5m2 = format == Fp8Format::e5m2;
    const auto codes = x.options().dtype(fp8_type(format));
    make_room(made, x, codes, sides);
    pass.inverse = floats_in(made.inverse);
    if (sides != Fp8Sides::columns) pass.rows_RC = static_cast<std::uint8_t*>(address_in(made.rows_RC));
    if (sides != Fp8Sides::rows) pass.columns_CR = static_cast<std::uint8_t*>(address_in(made.columns_CR));
    fused_->fp8_cast(pass);
    return made;
  }
  const auto most = at::amax(largest).to(at::kDouble).clamp_min_(kFp8LeastLargest);
  const auto scale = at::full({}, fp8_max(format), most.options()).div_(most).to(at::kFloat);
  const auto wide_RC = (x.to(at::kFloat) * scale).clamp_(-fp8_max(format), fp8_max(format));
  const auto put = [](at::Tensor& to, const at::Tensor& from) { to.defined() ? to.copy_(from) : to = from; };
  put(made.inverse, scale.reciprocal().view({1}));
  if (sides != Fp8Sides::columns) put(made.rows_RC, wide_RC.contiguous().to(fp8_type(format)));
  if (sides == Fp8Sides::rows) return made;
  const auto rows = x.size(0);
  auto columns_CR = at::zeros({x.size(1), fp8_padded(rows)}, wide_RC.options().dtype(fp8_type(format)));
  columns_CR.narrow(1, 0, rows).copy_(wide_RC.t());
  put(made.columns_CR, columns_CR);
  return made;
}

at::Tensor Ops::fp8_columns(const at::Tensor& rows_RC) const {
  const auto counted = work_.pass(2 * static_cast<double>(rows_RC.numel()));
  const auto rows = rows_RC.size(0), columns = rows_RC.size(1);
  if (cpu_ != nullptr) {  // in tiles of 64 x 64, which fit the first-level cache
    constexpr std::int64_t kSide = 64;
    auto columns_CR = at::empty({columns, rows}, rows_RC.options());
    launch((rows + kSide - 1) / kSide, row_grain(kSide * columns), [&](std::int64_t begin, std::int64_t end) {
      const auto* from = static_cast<const std::uint8_t*>(rows_RC.const_data_ptr());
      auto* to = static_cast<std::uint8_t*>(columns_CR.data_ptr());
      const auto last = std::min(rows, end * kSide);
      for (std::int64_t first_row = begin * kSide; first_row < last; first_row += kSide) {
        for (std::int64_t first = 0; first < columns; first += kSide) {
          for (auto c = first; c < std::min(columns, first + kSide); ++c) {
            for (auto r = first_row; r < std::min(last, first_row + kSide); ++r)
              to[c * rows + r] = from[r * columns + c];
          }
        }
      }
    });
    return columns_CR;
  }
  const bool is_aligned = rows % kFp8Multiple == 0 && columns % kFp8Multiple == 0 &&
                          reinterpret_cast<std::uintptr_t>(address_of(rows_RC)) % 16 == 0;
  if (fused_ != nullptr && !is_on_host(rows_RC) && rows_RC.numel() > 0 && is_aligned) {
    auto columns_CR = at::empty({columns, rows}, rows_RC.options());
    fused_->fp8_transpose({static_cast<const std::uint8_t*>(address_of(rows_RC)),
                           static_cast<std::uint8_t*>(address_in(columns_CR)), rows, columns});
    return columns_CR;
  }
  return rows_RC.view(at::kByte).t().contiguous().view(rows_RC.scalar_type());
}

void Ops::fp8_product(at::Tensor& out, Fp8Factor a, Fp8Factor b, Fp8Sums, bool add) const {
  const MemoryScope scope(MemoryCategory::workspace);
  const auto wide_a = a.values.to(at::kFloat), wide_b = b.values.to(at::kFloat);
  const auto scale = a.inverse * b.inverse;
  if (!add && out.scalar_type() == at::kFloat) {
    product(out, wide_a, wide_b.t(), false);
    out.mul_(scale);
    return;
  }
  auto sum = at::empty(out.sizes(), wide_a.options());
  product(sum, wide_a, wide_b.t(), false);
  sum.mul_(scale);
  add ? out.add_(sum.to(out.scalar_type())) : out.copy_(sum);
}

// --- NF4

at::Tensor Ops::dequantize(const Nf4Matrix& matrix, at::ScalarType dtype) const {
  const MemoryScope scope(MemoryCategory::workspace);
  auto out_OI = at::empty({matrix.rows, matrix.columns}, matrix.codes_S.options().dtype(dtype));
  dequantize_into(out_OI, matrix);
  return out_OI;
}

void Ops::dequantize_into(at::Tensor& out_OI, const Nf4Matrix& m) const {
  const auto blocks = m.absmax_S.size(0);
  if (cpu_ != nullptr) {
    constexpr std::int64_t kBlocksOfAThread = 1024;
    auto scale_S = m.absmax_S;
    if (m.nested_absmax.defined()) {
      scale_S = at::empty({blocks}, m.nested_absmax.options());
      const auto* offset = m.nested_offset.const_data_ptr<float>();
      kernels::Nf4NestedArgs nested{scale_S.data_ptr<float>(), m.absmax_S.const_data_ptr<std::uint8_t>(),
                                    m.nested_absmax.const_data_ptr<float>(), 0.0f, 0};
      launch(1, 1, [&](auto, auto) {
        nested.offset = *offset;
      });  // launch() skips this in a prediction, where the pointer is invalid
      launch(blocks, kBlocksOfAThread, [&](auto begin, auto end) { kernels::nf4_nested_scales(nested, begin, end); });
    }
    const kernels::Nf4Args args{out_OI.data_ptr(), m.codes_S.const_data_ptr<std::uint8_t>(),
                                scale_S.const_data_ptr<float>(), kernels::nf4_pairs().data(), out_OI.numel()};
    launch(blocks, kBlocksOfAThread,
           [&](auto begin, auto end) { cpu_->dequantize_nf4(kernel_type(out_OI), args, begin, end); });
    return;
  }
  const auto* codes_here = address_of(m.codes_S);
  if (fused_for({&out_OI}) != nullptr && are_packed(8, {address_of(out_OI)}) &&
      reinterpret_cast<std::uintptr_t>(codes_here) % 4 == 0) {
    fused::Nf4 pass{};
    pass.type = kernel_type(out_OI);
    pass.out = address_in(out_OI);
    pass.packed = static_cast<const std::uint8_t*>(codes_here);
    pass.elements = out_OI.numel();
    if (m.nested_absmax.defined()) {
      pass.codes = static_cast<const std::uint8_t*>(address_of(m.absmax_S));
      pass.nested = floats_of(m.nested_absmax);
      pass.offset = floats_of(m.nested_offset);
    } else {
      pass.absmax = floats_of(m.absmax_S);
    }
    fused_->nf4(pass);
    return;
  }
  auto scale_S = m.absmax_S;
  if (m.nested_absmax.defined()) {
    const auto code = table_beside(scale_S, kernels::signed_code().values);
    const auto nested_S = m.nested_absmax.unsqueeze(1).expand({-1, kEightBitBlock}).reshape({-1}).narrow(0, 0, blocks);
    scale_S = code.index({scale_S.to(at::kInt)}).mul_(nested_S).add_(m.nested_offset);
  }
  constexpr std::int64_t kBlocksAtOnce = 16384;
  const auto code = table_beside(m.codes_S, kernels::kNf4Code);
  const auto flat = out_OI.view({-1});
  repeat(count_blocks(blocks, kBlocksAtOnce), [&](std::int64_t chunk) {
    const auto first = chunk * kBlocksAtOnce, count = std::min(kBlocksAtOnce, blocks - first);
    const auto codes = m.codes_S.narrow(0, first, count);
    auto indices = at::empty({count, kernels::kNf4Block_bytes, 2}, codes.options().dtype(at::kInt));
    indices.select(2, 0).copy_(codes.bitwise_right_shift(4));
    indices.select(2, 1).copy_(codes.bitwise_and(15));
    auto values = code.index({indices.view({-1})}).view({count, kNf4Block});
    values.mul_(scale_S.narrow(0, first, count).unsqueeze(1));
    const auto elements = std::min(count * kNf4Block, flat.numel() - first * kNf4Block);
    flat.narrow(0, first * kNf4Block, elements).copy_(values.view({-1}).narrow(0, 0, elements));
  });
}

}  // namespace fsdp
