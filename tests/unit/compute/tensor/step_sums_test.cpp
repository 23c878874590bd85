#include "lib/compute/tensor/step_sums.hpp"
#include "tests/support/torch_doctest.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

using namespace fsdp;

TEST_SUITE("tensor/step sums") {
  TEST_CASE("named sums are added by their names, on the host and on the device") {
    StepSums sums({"balance", "z"});
    CHECK(sums.size() == 4);
    CHECK_FALSE(sums.pending.defined());
    sums.add("z", 2.5);
    sums.add("balance", at::full({1}, 0.5, at::kFloat));
    sums.add("balance", at::full({}, 0.25, at::kDouble));
    CHECK(sums.values() == std::vector<double>{0, 0, 0, 2.5});
    CHECK(at::equal(sums.pending, at::tensor({0.0, 0.0, 0.75, 0.0}, at::kDouble)));
    CHECK_THROWS_AS(sums.add("other", 1.0), std::logic_error);
  }

  TEST_CASE("a step's sums add those of its micro-batches, which may have fewer names") {
    StepSums step({"balance", "accuracy"});
    StepSums part({"balance"});
    part.nats = 3;
    part.weight = 2;
    part.add("balance", at::full({}, 1.0, at::kDouble));
    step += part;
    step.add("accuracy", 7.0);
    step.add("accuracy", at::full({}, 1.0, at::kDouble));
    StepSums other({"balance"});
    other.add("balance", at::full({}, 4.0, at::kDouble));
    step += other;
    step += StepSums({"balance"});
    CHECK(step.values() == std::vector<double>{3, 2, 0, 7});
    CHECK(at::equal(step.pending, at::tensor({0.0, 0.0, 5.0, 1.0}, at::kDouble)));
  }

  TEST_CASE("sums without names take those that they are given, and other names are refused") {
    StepSums total, part({"balance"});
    part.add("balance", 2.0);
    total += part;
    total += part;
    REQUIRE(total.named.size() == 1);
    CHECK(total.named.front().name == "balance");
    CHECK(total.named.front().value == 4.0);
    CHECK_THROWS_AS(total += StepSums({"z"}), std::logic_error);
  }
}
