#include "tests/support/torch_doctest.hpp"

#include "lib/base/types/error.hpp"
#include "lib/compute/tensor/scalar_type.hpp"

using namespace fsdp;

TEST_SUITE("tensor/scalar_type") {
  TEST_CASE("to_scalar_type: every checkpoint dtype has an ATen dtype of the same size, and back") {
    for (const auto& row : dtype_rows()) {
      const auto dtype = row.dtype;
      const auto type = to_scalar_type(dtype);
      CHECK((to_dtype(type) == dtype));
      CHECK(c10::elementSize(type) == dtype_size_bytes(dtype));
    }
    CHECK_THROWS_AS(to_dtype(at::kQInt8), std::logic_error);
    CHECK((kernel_type(at::kBFloat16) == kernels::Type::bf16));
    CHECK_THROWS_AS(kernel_type(at::kDouble), std::logic_error);
  }
}
