// Products whose rows do not depend on each other.
#include "lib/compute/ops/rowwise_ops.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>

#include "tests/support/reproducible_products.hpp"
#include "tests/support/torch_doctest.hpp"

using namespace fsdp;

TEST_SUITE("ops/rowwise") {
  TEST_CASE("a row of a product has the same bits for any number of rows, at any place") {
    const RowwiseOps ops;
    const auto threads = at::get_num_threads();
    // MKL alone cuts the sums of some of these by the number of rows and threads.
    for (const auto& [inputs, outputs] : {std::pair{1312, 640}, {1024, 2816}, {640, 301}, {2048, 768}, {48, 17}}) {
      CAPTURE(inputs);
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        CAPTURE(dtype);
        const auto weight_OI = at::randn({outputs, inputs}).to(dtype);
        const auto x_NI = at::randn({520, inputs}).to(dtype);
        const auto exact = CpuOps().linear(x_NI.narrow(0, 0, RowwiseOps::kRowsAlike), weight_OI).to(at::kFloat);
        for (const int count : {1, 2}) {
          CAPTURE(count);
          at::set_num_threads(count);
          const auto truth = ops.linear(x_NI.narrow(0, 0, RowwiseOps::kRowsAlike), weight_OI);
          CHECK((truth.to(at::kFloat) - exact).abs().max().item<float>() <= 2e-2F * exact.abs().max().item<float>());
          for (const std::int64_t rows : {16, 17, 48, 65, 520}) {
            CAPTURE(rows);
            const auto first = ops.linear(x_NI.narrow(0, 0, rows), weight_OI);
            CHECK(at::equal(first.narrow(0, 0, 16), truth));
            const auto turned = ops.linear(x_NI.narrow(0, 0, rows).flip(0).contiguous(), weight_OI);
            CHECK(at::equal(turned.flip(0).narrow(0, 0, 16), truth));
          }
        }
        at::set_num_threads(threads);
      }
    }
  }
}
