// Products in every layout that the models use, against the same product in double.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "lib/compute/ops/products/gemm.hpp"
#include "lib/compute/ops/products/wide_product.hpp"

namespace fsdp {
namespace {

double error(const at::Tensor& found, const at::Tensor& a, const at::Tensor& b) {
  const auto exact = at::matmul(a.to(at::kDouble), b.to(at::kDouble));
  const auto apart = (found.to(at::kDouble) - exact).norm().item<double>();
  return apart / std::max(exact.norm().item<double>(), 1e-30);
}

struct Case {
  at::ScalarType dtype;
  double tolerance;  // the rounding of the sums: a few units in the last place of the type
};
at::Tensor gemm(const at::Tensor& a, const at::Tensor& b) {
  auto out = at::empty({a.size(0), b.size(1)}, a.options());
  host_product(out, a, b, false);
  return out;
}

const Case kCases[] = {{at::kFloat, 1e-6}, {at::kBFloat16, 6e-3}};

void widen(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) {
  widened_product(out, a, b, add, host_product);
}

TEST_CASE("host_product multiplies operands of any layout") {
  for (const auto& [dtype, tolerance] : kCases) {
    for (const auto& [m, k, n] :
         {std::array<std::int64_t, 3>{7, 33, 65}, {64, 255, 255}, {1, 16, 48}, {510, 64, 1021}}) {
      const auto a = at::randn({m, k}).to(dtype);
      const auto b = at::randn({k, n}).to(dtype);
      const auto a_turned = a.t().contiguous().t();
      const auto b_turned = b.t().contiguous().t();
      const auto wide = at::randn({m, 3 * k}).to(dtype);
      CHECK(error(gemm(a, b), a, b) < tolerance);
      CHECK(error(gemm(a, b_turned), a, b) < tolerance);
      CHECK(error(gemm(a_turned, b), a, b) < tolerance);
      CHECK(error(gemm(a_turned, b_turned), a, b) < tolerance);
      CHECK(error(gemm(wide.narrow(1, k, k), b), wide.narrow(1, k, k), b) < tolerance);

      auto out = at::empty({m, n}, a.options());
      host_product(out, a, b, false);
      CHECK(error(out, a, b) < tolerance);
      host_product(out, a, b, true);
      CHECK(error(out / 2, a, b) < 2 * tolerance);
    }
  }
}

TEST_CASE("weights with a float32 copy are read from the copy, through every view, and give the same bits") {
  const std::int64_t rows = 1100, inner = 2500, columns = 1300;  // each exceeds a panel
  const auto weight = at::randn({columns, inner}).to(at::kBFloat16);
  auto kept = weight.to(at::kFloat);
  const auto both = with_wide_copy(weight, kept);
  CHECK(both.data_ptr() == weight.data_ptr());
  const auto x = at::randn({rows, inner}).to(at::kBFloat16), grad = at::randn({rows, columns}).to(at::kBFloat16);
  const auto product = [](const at::Tensor& a, const at::Tensor& b) {
    auto out = at::empty({a.size(0), b.size(1)}, a.options());
    widen(out, a, b, false);
    return out;
  };
  CHECK(product(x, both.t()).equal(product(x, weight.t())));
  CHECK(product(grad, both).equal(product(grad, weight)));
  const auto part = [](const at::Tensor& w) { return w.narrow(0, 200, 700).narrow(1, 64, 600).t(); };
  CHECK(product(x.narrow(1, 0, 600), part(both)).equal(product(x.narrow(1, 0, 600), part(weight))));
  // The values in the copy count.
  kept.mul_(2);
  CHECK(product(grad, both).equal(product(grad, weight.mul(2))));
  // A separate tensor has no copy.
  CHECK_FALSE(wide_copy_of(both.clone()).defined());
  CHECK_FALSE(wide_copy_of(weight).defined());
}

TEST_CASE("host_product multiplies batches in strided views into strided views") {
  for (const auto& [dtype, tolerance] : kCases) {
    const std::int64_t heads = 4, length = 255, size = 64;
    const auto qkv = at::randn({length, 3 * heads * size}).to(dtype);
    const auto part = [&](std::int64_t which) {
      return qkv.as_strided({heads, length, size}, {size, 3 * heads * size, 1}, which * heads * size);
    };
    auto scores = at::empty({heads, length, length}, qkv.options());
    host_product(scores, part(0), part(1).transpose(1, 2), false);
    CHECK(error(scores, part(0), part(1).transpose(1, 2)) < tolerance);
    auto out_ND = at::zeros({length, heads * size}, qkv.options());
    auto out = out_ND.view({length, heads, size}).transpose(0, 1);
    host_product(out, scores, part(2), false);
    CHECK(error(out, scores, part(2)) < tolerance);
  }
}

TEST_CASE("a widened product equals float32's, rounded once") {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    // The last size is split along rows, columns and sums, with remainders.
    for (const auto& [m, k, n] :
         {std::array<std::int64_t, 3>{7, 33, 65}, {1, 16, 48}, {300, 64, 1100}, {1100, 2100, 1030}}) {
      const auto a = at::randn({m, k}).to(dtype), b = at::randn({k, n}).to(dtype);
      const auto exact = at::matmul(a.to(at::kFloat), b.to(at::kFloat));
      const auto a_turned = a.t().contiguous().t(), b_turned = b.t().contiguous().t();
      const auto place = at::zeros({m, 2 * n}).to(dtype);
      for (const auto& [x, y] : {std::pair(a, b), std::pair(a_turned, b), std::pair(a, b_turned)}) {
        auto out = place.narrow(1, n, n);
        widen(out, x, y, false);
        // Half a unit in the last place, and what float32's sums of up to 2100 products differ by in another order:
        // their size, 46, times 2^-24 in each of sqrt(2100) roundings is 1.3e-4.
        const double half_unit = dtype == at::kHalf ? 5e-4 : 4e-3;
        CHECK(((out.to(at::kFloat) - exact).abs() <= half_unit * exact.abs() + 2e-4).all().item<bool>());
        const auto once = out.to(at::kFloat);
        widen(out, x, y, true);
        CHECK(
            ((out.to(at::kFloat) - once - exact).abs() <= half_unit * (once + exact).abs() + 2e-4).all().item<bool>());
      }
    }
  }
}

TEST_CASE("widened batches") {
  const std::int64_t batch = 37, length = 200, size = 24;  // several per panel, with a remainder
  const auto a = at::randn({batch, length, size}).to(at::kBFloat16), b = at::randn({batch, length, size}).to(a.dtype());
  auto out = at::empty({batch, length, length}, a.options());
  widen(out, a, b.transpose(1, 2), false);
  CHECK(error(out, a, b.transpose(1, 2)) < 6e-3);
}

TEST_CASE("empty products") {
  const auto a = at::zeros({0, 8});
  const auto b = at::randn({8, 5});
  CHECK(gemm(a, b).sizes() == at::IntArrayRef{0, 5});
  auto none = at::empty({0, 5}, at::kBFloat16);
  widen(none, at::empty({0, 8}, at::kBFloat16), at::empty({8, 5}, at::kBFloat16), false);
  auto sixteen = at::ones({4, 5}).to(at::kBFloat16);
  widen(sixteen, at::empty({4, 0}, at::kBFloat16), at::empty({0, 5}, at::kBFloat16), true);
  CHECK(sixteen.equal(at::ones_like(sixteen)));
  widen(sixteen, at::empty({4, 0}, at::kBFloat16), at::empty({0, 5}, at::kBFloat16), false);
  CHECK(sixteen.equal(at::zeros_like(sixteen)));
  auto out = at::randn({4, 5});
  const auto before = out.clone();
  host_product(out, at::zeros({4, 0}), at::zeros({0, 5}), true);
  CHECK(out.equal(before));
  host_product(out, at::zeros({4, 0}), at::zeros({0, 5}), false);
  CHECK(out.equal(at::zeros({4, 5})));
}

TEST_CASE("a product has the same bits in each run") {
  const auto a = at::randn({300, 200});
  const auto b = at::randn({200, 100});
  const auto first = gemm(a, b);
  for (int i = 0; i < 5; ++i) CHECK(gemm(a.clone(), b).equal(first));
}

}  // namespace
}  // namespace fsdp
