// The kernels' source on the CPU (tests/support/emulated_cuda.hpp), with threads in three orders, against plain
// operators, bit for bit.
#include "tests/support/torch_doctest.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>

#include <limits>

#include "lib/compute/ops/ops.hpp"
#include "tests/support/emulated_ops.hpp"
#include "tests/support/fp8_checks.hpp"

using namespace fsdp;
using emulated::kOrders;
using emulated::Order;

namespace {

template <typename Check>
void in_all_orders(const Check& check) {
  for (const auto order : kOrders) {
    CAPTURE(static_cast<int>(order));
    check(test::EmulatedOps(order));
  }
}

}  // namespace

TEST_SUITE("cuda/fp8 kernel") {
  TEST_CASE("matrices of any size, in three dtypes, alone and as columns of a wider matrix") {
    in_all_orders([](const Ops& ops) { test::check_fp8_matrices(ops); });
  }

  TEST_CASE("codes of every 16-bit number, at several magnitudes") {
    in_all_orders([](const Ops& ops) { test::check_fp8_numbers(ops); });
  }

  TEST_CASE("codes by rows are converted to codes by columns") {
    test::check_fp8_columns(host_ops());
    in_all_orders([](const Ops& ops) { test::check_fp8_columns(ops); });
  }

  TEST_CASE("infinities and NaNs") {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      auto x = at::randn({40, 32});
      x[39][31] = bad;
      const auto want = host_ops().to_fp8(x, Fp8Format::e4m3, Fp8Sides::rows);
      const auto made = test::EmulatedOps(Order::shuffled).to_fp8(x, Fp8Format::e4m3, Fp8Sides::rows);
      CHECK(made.inverse.isfinite().item<bool>() == false);
      CHECK(made.rows_RC.to(at::kFloat).isnan().equal(want.rows_RC.to(at::kFloat).isnan()));
    }
  }
}
