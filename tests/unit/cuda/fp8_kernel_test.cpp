// The kernels' own source on the CPU (tests/support/emulated_cuda.hpp), its threads in three orders, against plain
// operators, bit for bit.
#include "tests/support/torch_doctest.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>

#include <array>
#include <limits>

#include "lib/ops/ops.hpp"
#include "tests/support/emulated_ops.hpp"
#include "tests/support/tensor_compare.hpp"

using namespace fsdp;
using emulated::Order;
using fsdp::test::same_bits;

namespace {

constexpr std::array kOrders{Order::forward, Order::backward, Order::shuffled};
constexpr std::array kFormats{Fp8Format::e4m3, Fp8Format::e5m2};
constexpr std::initializer_list<Fp8Sides> kSides{Fp8Sides::rows, Fp8Sides::columns, Fp8Sides::both};

bool same_codes(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return same_bits(a.view(at::kByte), b.view(at::kByte));
}

void check(const at::Tensor& x, std::initializer_list<Fp8Sides> all = kSides) {
  for (const auto format : kFormats) {
    for (const auto sides : all) {
      const auto want = host_ops().quantize(x, format, sides);
      for (const auto order : kOrders) {
        CAPTURE(static_cast<int>(order));
        CAPTURE(static_cast<int>(sides));
        const auto made = test::EmulatedOps(order).quantize(x, format, sides);
        CHECK(same_codes(made.rows_RC, want.rows_RC));
        CHECK(same_codes(made.columns_CR, want.columns_CR));
        CHECK(same_bits(made.inverse, want.inverse));
      }
    }
  }
}

}  // namespace

TEST_SUITE("cuda/fp8 kernel") {
  TEST_CASE("matrices of any size, of three types, alone and among the columns of another") {
    for (const auto& [rows, columns] : {std::pair(1, 16), {5, 48}, {16, 64}, {70, 80}, {129, 272}}) {
      CAPTURE(rows);
      CAPTURE(columns);
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        check((at::randn({rows, columns}) * 3).to(dtype));
        // Rows that begin at multiples of 16 bytes, and rows that do not.
        check(at::randn({rows, columns + 32}).to(dtype).narrow(1, 16, columns));
        check(at::randn({rows, columns + 5}).to(dtype).narrow(1, 3, columns));
      }
    }
  }

  TEST_CASE("more rows than there are thread blocks") {
    check(at::randn({2300, 16}).to(at::kBFloat16), {Fp8Sides::both});
  }

  TEST_CASE("every number of 16 bits, of every size beside others") {
    const auto bits = at::arange(65536, at::kInt).to(at::kShort).view({256, 256});
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      const auto all = bits.view(dtype).to(at::kFloat);
      const auto finite = at::where(all.isfinite(), all, 0.0);
      for (const double most : {1e-3, 1.0, 448.0, 1e30}) check(finite.clamp(-most, most), {Fp8Sides::rows});
    }
  }

  TEST_CASE("codes by rows become codes by columns") {
    for (const auto& [rows, columns] : {std::pair(16, 16), {32, 80}, {144, 64}, {208, 272}}) {
      const auto x = host_ops().quantize(at::randn({rows, columns}), Fp8Format::e4m3, Fp8Sides::both);
      CHECK(same_codes(host_ops().fp8_columns(x.rows_RC), x.columns_CR));
      for (const auto order : kOrders) CHECK(same_codes(test::EmulatedOps(order).fp8_columns(x.rows_RC), x.columns_CR));
    }
  }

  TEST_CASE("zeros, numbers near them, infinities and what is no number") {
    check(at::zeros({16, 16}));
    check(at::randn({16, 16}) * 1e-20);
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      auto x = at::randn({40, 32});
      x[39][31] = bad;
      const auto want = host_ops().quantize(x, Fp8Format::e4m3, Fp8Sides::rows);
      const auto made = test::EmulatedOps(Order::shuffled).quantize(x, Fp8Format::e4m3, Fp8Sides::rows);
      CHECK(made.inverse.isfinite().item<bool>() == false);
      CHECK(made.rows_RC.to(at::kFloat).isnan().equal(want.rows_RC.to(at::kFloat).isnan()));
    }
  }
}
