#include "tests/support/torch_doctest.hpp"

#include "lib/compute/tensor/sequences.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include "tests/support/packed_rows.hpp"

using namespace fsdp;

TEST_SUITE("tensor/sequences") {
  TEST_CASE("numbers of sequences are spread over their tokens, also of a single one, for kernels that read an array") {
    for (const std::int64_t rows : {1, 2}) {
      MicroBatch batch;
      batch.rows = rows;
      batch.length = 3;
      const auto values = at::arange(1, rows + 1, at::kDouble);
      const auto spread = spread_over_sequences(batch, values);
      CHECK(spread.is_contiguous());
      CHECK((spread.scalar_type() == at::kFloat));
      for (std::int64_t t = 0; t < 3 * rows; ++t) CHECK(spread[t].item<double>() == 1 + static_cast<double>(t / 3));
      CHECK(at::equal(sum_by_sequence(batch, spread), 3 * values));
    }
  }

  TEST_CASE("packed documents have their own tokens, and padding has 0") {
    MicroBatch batch;
    batch.rows = 1;
    batch.length = 8;
    batch.packing = test::packed_sharing({{3, {2, 2}}}, 8);
    const auto spread = spread_over_sequences(batch, at::tensor({5.0, 7.0}, at::kDouble));
    CHECK(at::equal(spread, at::tensor({5.0f, 5.0f, 5.0f, 7.0f, 7.0f, 0.0f, 0.0f, 0.0f})));
    CHECK(at::equal(sum_by_sequence(batch, spread), at::tensor({15.0, 14.0}, at::kDouble)));
  }
}
