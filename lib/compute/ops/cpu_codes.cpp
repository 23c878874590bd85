// fp8 casts on the CPU in two passes (to emulate a GPU's fp8 training), and dequantization of NF4.
#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "lib/compute/ops/cpu_ops.hpp"
#include "lib/compute/ops/fp8.hpp"
#include "lib/compute/ops/row_loops.hpp"

namespace fsdp {

using namespace detail;

namespace {

template <typename Body>
void with_elements(const at::Tensor& x, const Body& body) {
  switch (type_of(x)) {
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

}  // namespace

at::Tensor CpuOps::fp8_largest(const at::Tensor& x_RC) const {
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

Fp8Matrix CpuOps::fp8_cast(const at::Tensor& x, const at::Tensor& largest, Fp8Format format, Fp8Sides sides,
                           Fp8Matrix made) const {
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

/// Transposes in tiles of 64 x 64, which fit the first-level cache.
at::Tensor CpuOps::fp8_columns(const at::Tensor& rows_RC) const {
  constexpr std::int64_t kSide = 64;
  const auto rows = rows_RC.size(0), columns = rows_RC.size(1);
  auto columns_CR = at::empty({columns, rows}, rows_RC.options());
  launch((rows + kSide - 1) / kSide, row_grain(kSide * columns), [&](std::int64_t begin, std::int64_t end) {
    const auto* from = static_cast<const std::uint8_t*>(rows_RC.const_data_ptr());
    auto* to = static_cast<std::uint8_t*>(columns_CR.data_ptr());
    const auto last = std::min(rows, end * kSide);
    for (std::int64_t first_row = begin * kSide; first_row < last; first_row += kSide) {
      for (std::int64_t first = 0; first < columns; first += kSide) {
        for (auto c = first; c < std::min(columns, first + kSide); ++c) {
          for (auto r = first_row; r < std::min(last, first_row + kSide); ++r) to[c * rows + r] = from[r * columns + c];
        }
      }
    }
  });
  return columns_CR;
}

void CpuOps::dequantize_into(at::Tensor& out_OI, const Nf4Matrix& m) const {
  constexpr std::int64_t kBlocksOfAThread = 1024;
  const auto blocks = m.absmax_S.size(0);
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
         [&](auto begin, auto end) { kernels::table().dequantize_nf4(type_of(out_OI), args, begin, end); });
}

}  // namespace fsdp
