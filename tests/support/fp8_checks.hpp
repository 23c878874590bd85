#pragma once
// Compares fp8 matrices of a device with the host's, bit for bit, and fp8 products with float64.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>
#include <doctest/doctest.h>

#include <array>
#include <initializer_list>
#include <utility>

#include "lib/compute/ops/ops.hpp"
#include "tests/support/tensor_compare.hpp"

namespace fsdp::test {

inline constexpr std::initializer_list<Fp8Sides> kFp8Sides{Fp8Sides::rows, Fp8Sides::columns, Fp8Sides::both};

inline at::Tensor fp8_bits(const at::Tensor& codes) { return codes.contiguous().view(at::kByte).to(at::kCPU); }

inline bool same_codes(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return same_bits(fp8_bits(a), fp8_bits(b));
}

/// Compares the fp8 codes of a column range of `wide` with the host's. \param first  first column of the range
inline void check_fp8_codes(const Ops& ops, const at::Tensor& wide, std::int64_t first, std::int64_t columns,
                            std::initializer_list<Fp8Sides> all = kFp8Sides) {
  const auto there = wide.to(ops.device()).narrow(1, first, columns), here = wide.narrow(1, first, columns);
  for (const auto format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    for (const auto sides : all) {
      CAPTURE(static_cast<int>(sides));
      const auto want = host_ops().to_fp8(here, format, sides), made = ops.to_fp8(there, format, sides);
      CHECK(same_codes(made.rows_RC, want.rows_RC));
      CHECK(same_codes(made.columns_CR, want.columns_CR));
      CHECK(same_bits(made.inverse.to(at::kCPU), want.inverse));
    }
  }
}
inline void check_fp8_codes(const Ops& ops, const at::Tensor& x, std::initializer_list<Fp8Sides> all = kFp8Sides) {
  check_fp8_codes(ops, x, 0, x.size(1), all);
}

/// Checks many sizes, dtypes and alignments.
inline void check_fp8_matrices(const Ops& ops) {
  for (const auto& [rows, columns] : {std::pair(1, 16), {5, 48}, {16, 64}, {70, 80}, {129, 272}}) {
    CAPTURE(rows);
    CAPTURE(columns);
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      check_fp8_codes(ops, (at::randn({rows, columns}) * 3).to(dtype));
      // Rows that begin at multiples of 16 bytes, and rows that do not.
      check_fp8_codes(ops, at::randn({rows, columns + 32}).to(dtype), 16, columns);
      check_fp8_codes(ops, at::randn({rows, columns + 5}).to(dtype), 3, columns);
    }
  }
  check_fp8_codes(ops, at::randn({2300, 16}).to(at::kBFloat16), {Fp8Sides::both});  // more rows than thread blocks
  check_fp8_codes(ops, at::full({16, 16}, 0.0));
  check_fp8_codes(ops, at::randn({16, 16}) * 1e-20);
}

/// Checks every finite 16-bit number, clamped to several magnitudes.
inline void check_fp8_numbers(const Ops& ops) {
  const auto bits = at::arange(65536, at::kInt).to(at::kShort).view({256, 256});
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const auto all = bits.view(dtype).to(at::kFloat);
    const auto finite = at::where(all.isfinite(), all, 0.0);
    for (const double most : {1e-3, 1.0, 448.0, 1e30})
      check_fp8_codes(ops, finite.clamp(-most, most), {Fp8Sides::rows});
  }
}

inline void check_fp8_columns(const Ops& ops) {
  for (const auto& [rows, columns] : {std::pair(16, 16), {32, 80}, {144, 64}, {208, 272}}) {
    const auto x = host_ops().to_fp8(at::randn({rows, columns}), Fp8Format::e4m3, Fp8Sides::both);
    CHECK(same_codes(ops.fp8_columns(x.rows_RC.to(ops.device())), x.columns_CR));
  }
}

/// Returns the values that the codes stand for, in float64 on the host.
inline at::Tensor fp8_values(const at::Tensor& codes, const at::Tensor& inverse) {
  return codes.to(at::kFloat).to(at::kCPU, at::kDouble) * inverse.to(at::kCPU, at::kDouble);
}

/// Error, relative to the largest result, of GPUs that align 64 products to the largest one before they add them, with
/// 13 bits: each product loses less than 2^-13 of the largest one, half of it on average.
inline constexpr double kAlignedSums = 1e-3;

/// Checks products in three dtypes, stored and accumulated, into aligned and unaligned columns of a wider matrix.
/// \param exact  error of a sum with Fp8Sums::exact, relative to the largest result
inline void check_fp8_products(const Ops& ops, double exact = 0) {
  const auto made = [&](std::int64_t rows, Fp8Format format, at::ScalarType dtype) {
    return ops.to_fp8(at::randn({rows, 64}).to(ops.device(), dtype), format, Fp8Sides::rows);
  };
  const auto b = made(32, Fp8Format::e4m3, at::kBFloat16);
  for (const auto& [sums, format] : {std::pair(Fp8Sums::fast, Fp8Format::e4m3),
                                     {Fp8Sums::exact, Fp8Format::e4m3},
                                     {Fp8Sums::exact, Fp8Format::e5m2}}) {
    for (const std::int64_t rows : {21, 1}) {
      const auto a = made(rows, format, at::kFloat);
      const auto want = fp8_values(a.rows_RC, a.inverse).matmul(fp8_values(b.rows_RC, b.inverse).t());
      for (const auto& [dtype, epsilon] : {std::pair(at::kFloat, 1e-6), {at::kBFloat16, 4e-3}, {at::kHalf, 5e-4}}) {
        // Covers a sum of 64 products, one rounding of the addend and one of the sum.
        const auto tolerance =
            (epsilon + (sums == Fp8Sums::fast ? kAlignedSums : exact)) * want.abs().max().item<double>() * 2;
        for (const std::int64_t first : {8, 3}) {
          CAPTURE(first);
          auto out = at::full({rows, 40}, 3.0, at::TensorOptions(dtype).device(ops.device()));
          auto part = out.narrow(1, first, 32);
          const auto far = [&](int times) {
            return (part.to(at::kCPU, at::kDouble) - times * want).abs().max().item<double>();
          };
          ops.fp8_product(part, {a.rows_RC, a.inverse}, {b.rows_RC, b.inverse}, sums, false);
          CHECK(far(1) < tolerance);
          ops.fp8_product(part, {a.rows_RC, a.inverse}, {b.rows_RC, b.inverse}, sums, true);
          CHECK(far(2) < 2 * tolerance);
          CHECK(out.narrow(1, 0, first).eq(3.0).all().item<bool>());
          CHECK(out.narrow(1, first + 32, 8 - first).eq(3.0).all().item<bool>());
        }
      }
    }
  }
}

}  // namespace fsdp::test
