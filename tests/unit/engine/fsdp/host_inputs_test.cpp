#include "lib/engine/fsdp/host_inputs.hpp"

#include "tests/support/torch_doctest.hpp"

#include <ATen/ops/full.h>

#include "lib/compute/ops/cpu_ops.hpp"
#include "tests/support/tensor_compare.hpp"

using fsdp::HostInputs;

TEST_SUITE("fsdp/host inputs") {
  TEST_CASE("inputs come back in reverse order, of any shape, micro-batch after micro-batch") {
    HostInputs inputs(fsdp::host_ops());
    for (const int rows : {4, 2, 9, 10, 1}) {
      std::vector<at::Tensor> given;
      for (int layer = 0; layer < 3; ++layer) {
        given.push_back(at::full({rows + layer, 3}, 10.0 * rows + layer));
        inputs.keep(given.back());
      }
      if (rows == 9) {  // the micro-batch fails after its forward
        inputs.fetch();
        inputs.clear();
        continue;
      }
      inputs.fetch();
      for (std::size_t layer = 3; layer-- > 0;) {
        const auto back = inputs.take();
        CHECK(fsdp::test::same_bits(back, given[layer]));
        CHECK(!back.is_same(given[layer]));
      }
      inputs.fetch();  // there is none
    }
  }
}
