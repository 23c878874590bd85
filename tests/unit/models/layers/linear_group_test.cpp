#include "lib/models/layers/linear_group.hpp"

#include "tests/support/torch_doctest.hpp"

#include "lib/compute/ops/ops.hpp"

using namespace fsdp;

TEST_SUITE("model/linear_group") {
  TEST_CASE("a bias in bf16 is added before the product is rounded, also behind a matrix that joins others") {
    // Between 1 and 2 numbers of bf16 are 2^-7 apart. The product, 1 + 2^-9, rounds to 1, and the bias alone is less
    // than half a step, so that it would be lost after the rounding; with the bias the sum is past the middle.
    const double bias = 0x1p-9 + 0x1p-10;
    const auto bf16 = at::TensorOptions().dtype(at::kBFloat16);
    const auto row = at::tensor({1.0, 0x1p-9}).to(at::kBFloat16);
    const auto weights = row.expand({2 * 16, 2}).contiguous();  // of two matrices, adjacent in memory
    const std::vector<at::Tensor> params{weights.narrow(0, 0, 16), weights.narrow(0, 16, 16)};
    const std::vector<at::Tensor> biases(2, at::full({16}, bias, bf16));
    const auto x = at::ones({8, 2}, bf16);

    const fsdp::detail::Linear first{.weight = 0, .rows = 16, .columns = 2},
        second{.weight = 1, .rows = 16, .columns = 2};
    const fsdp::detail::LinearGroup one(host_ops(), {}, {first}, 0), both(host_ops(), {}, {first, second}, 0);
    const auto want = at::full({8, 16}, 1.0 + 0x1p-7, bf16);
    CHECK(one.adds_bias_in_product(params, at::kBFloat16));
    CHECK(at::equal(one.project(params, {}, x, nullptr, biases[0]), want));
    auto outs = both.make_outputs(params, x);
    both.forward(params, {}, x, outs, nullptr, biases);
    for (const auto& out : outs) CHECK(at::equal(out, want));
    CHECK(at::equal(one.project(params, {}, x, nullptr), at::ones({8, 16}, bf16)));
  }

  TEST_CASE("a bias in float32 is added behind the product") {
    at::manual_seed(3);
    const std::vector<at::Tensor> params{at::randn({5, 3})};
    const auto x = at::randn({4, 3}), bias = at::randn({5});
    const fsdp::detail::LinearGroup group(host_ops(), {}, {{.weight = 0, .rows = 5, .columns = 3}}, 0);
    CHECK_FALSE(group.adds_bias_in_product(params, at::kFloat));
    CHECK(at::equal(group.project(params, {}, x, nullptr, bias), group.project(params, {}, x, nullptr) + bias));
  }
}
