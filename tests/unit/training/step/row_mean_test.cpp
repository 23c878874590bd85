#include "lib/training/step/row_mean.hpp"
#include "tests/support/torch_doctest.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

using namespace fsdp;

TEST_SUITE("train/row mean") {
  TEST_CASE("targets weigh one over those of their row; a row without targets does not count") {
    MicroBatch batch;
    batch.rows = 3;
    batch.length = 4;
    batch.ids_N = at::arange(12, at::kInt);
    batch.targets_N = at::tensor({1, 2, 3, 4, -1, 6, 7, -1, -1, -1, -1, -1}, at::kInt);
    CHECK(RowMean().weigh(batch) == 2.0);
    CHECK(at::equal(batch.weights_N,
                    at::tensor({0.25f, 0.25f, 0.25f, 0.25f, 0.5f, 0.5f, 0.5f, 0.5f, 0.0f, 0.0f, 0.0f, 0.0f})));
  }
}
