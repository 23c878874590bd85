// Parameter gradients: the first writer sets them, later ones add, in every dtype, for kernels and plain operators.
#include "tests/support/torch_doctest.hpp"

#include "lib/compute/ops/cpu_ops.hpp"
#include "lib/compute/ops/device_ops.hpp"
#include "tests/support/tensor_compare.hpp"

using namespace fsdp;
using namespace fsdp::test;

TEST_SUITE("ops/gradients") {
  TEST_CASE("the first writer replaces the contents, later ones add") {
    at::manual_seed(1);
    const DeviceOps plain(at::kCPU);
    const auto grad = at::randn({4, 3}), x = at::randn({4, 5}), values = at::randn({15});
    const auto product = at::mm(grad.t(), x);
    for (const Ops* ops : {&host_ops(), static_cast<const Ops*>(&plain)}) {
      for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const double bound = type == at::kFloat ? 1e-6 : 1e-2;
        INFO(std::string(c10::toString(type)));
        GradSlot slot{at::full({3, 5}, NAN, type), false};
        ops->weight_grad(&slot, grad, x);
        CHECK(relative_error(slot.grad, product) < bound);
        ops->weight_grad(&slot, grad, x);
        ops->accumulate(&slot, values);
        CHECK(relative_error(slot.grad, 2 * product + values.view({3, 5})) < bound);
        Ops::finish(slot);
        CHECK(relative_error(slot.grad, 2 * product + values.view({3, 5})) < bound);
        GradSlot other{at::full({3, 5}, NAN, type), false};
        ops->accumulate(&other, values);
        CHECK(relative_error(other.grad, values.view({3, 5})) < bound);
        ops->weight_grad(&other, grad.to(type), x.to(type));
        CHECK(relative_error(other.grad, product + values.view({3, 5})) < bound);
      }
    }
  }

  TEST_CASE("finish() fills gradients without a writer with zeros") {
    GradSlot slot{at::full({3, 5}, NAN), false};
    Ops::finish(slot);
    CHECK(slot.grad.count_nonzero().item<std::int64_t>() == 0);
    CHECK(slot.written);
  }

  TEST_CASE("sum_squares leaves padding out, with the same result from kernels and plain operators") {
    at::manual_seed(2);
    const auto a = at::randn({70001}), b = at::randn({3, 4});
    const std::vector<GradPart> parts{{a, 70000}, {b, 12}};
    const double want = a.narrow(0, 0, 70000).to(at::kDouble).square().sum().item<double>() +
                        b.to(at::kDouble).square().sum().item<double>();
    CHECK(host_ops().sum_squares(parts) == doctest::Approx(want).epsilon(1e-12));
    CHECK(DeviceOps(at::kCPU).sum_squares(parts) == doctest::Approx(want).epsilon(1e-12));
  }

  TEST_CASE("linear: forward, input gradient and weight gradient are consistent derivatives") {
    at::manual_seed(3);
    const auto x = at::randn({6, 5}), weight = at::randn({4, 5}), grad = at::randn({6, 4});
    const DeviceOps plain(at::kCPU);
    for (const Ops* ops : {&host_ops(), static_cast<const Ops*>(&plain)}) {
      CHECK(relative_error(ops->linear(x, weight), at::mm(x, weight.t())) < 1e-6);
      auto back = ops->linear_backward(grad, weight);
      CHECK(relative_error(back, at::mm(grad, weight)) < 1e-6);
      ops->linear_backward_add(back, grad, weight);
      CHECK(relative_error(back, 2 * at::mm(grad, weight)) < 1e-6);
      auto wide = at::zeros({6, 9});
      auto columns = wide.narrow(1, 2, 4);
      ops->linear_into(columns, x, weight);
      CHECK(relative_error(wide.narrow(1, 2, 4), at::mm(x, weight.t())) < 1e-6);
      CHECK(wide.narrow(1, 0, 2).count_nonzero().item<std::int64_t>() == 0);
    }
  }
}
