#include "tests/support/torch_doctest.hpp"

#include "lib/base/error.hpp"
#include "lib/tensor/layer.hpp"
#include "lib/tensor/scalar_type.hpp"
#include "tests/support/tensor_compare.hpp"

using namespace fsdp;
using namespace fsdp::test;

TEST_SUITE("tensor/layer") {
  TEST_CASE("GradSlot: the first writer replaces what was there, later ones add") {
    at::manual_seed(1);
    const auto a = at::randn({3, 4}), b = at::randn({4, 5}), values = at::randn({15});
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const double bound = type == at::kFloat ? 1e-6 : 1e-2;
      INFO(std::string(c10::toString(type)));
      GradSlot slot{at::full({3, 5}, NAN, type), false};
      slot.add_product(a, b);
      CHECK(relative_error(slot.grad, at::mm(a, b)) < bound);
      slot.add_product(a, b);
      slot.add(values);
      CHECK(relative_error(slot.grad, 2 * at::mm(a, b) + values.view({3, 5})) < bound);
      slot.finish();
      CHECK(relative_error(slot.grad, 2 * at::mm(a, b) + values.view({3, 5})) < bound);
      GradSlot other{at::full({3, 5}, NAN, type), false};
      other.add(values);
      CHECK(relative_error(other.grad, values.view({3, 5})) < bound);
      other.add_product(a.to(type), b.to(type));
      CHECK(relative_error(other.grad, at::mm(a, b) + values.view({3, 5})) < bound);
    }
  }

  TEST_CASE("GradSlot: finish makes zeros where nobody wrote") {
    GradSlot slot{at::full({3, 5}, NAN), false};
    slot.finish();
    CHECK(slot.grad.count_nonzero().item<std::int64_t>() == 0);
    CHECK(slot.written);
  }
}

TEST_SUITE("tensor/scalar_type") {
  TEST_CASE("to_scalar_type: every checkpoint type has its ATen twin of the same size, and back") {
    for (int i = 0; i <= static_cast<int>(DType::c128); ++i) {
      const auto dtype = static_cast<DType>(i);
      const auto type = to_scalar_type(dtype);
      CHECK((to_dtype(type) == dtype));
      CHECK(c10::elementSize(type) == dtype_size_bytes(dtype));
    }
    CHECK_THROWS_AS(to_dtype(at::kQInt8), std::logic_error);
    CHECK((kernel_type(at::kBFloat16) == kernels::Type::bf16));
    CHECK_THROWS_AS(kernel_type(at::kDouble), std::logic_error);
  }
}
