// Products in 8 bits on the GPU: casts are the host's, bit for bit, with the conversion instruction that the emulated
// kernels have no part in.
#include "tests/gpu/gpu_support.hpp"
#include "tests/support/fp8_checks.hpp"

namespace {

/// Null where this GPU has no such products, which is said.
std::shared_ptr<const fsdp::Ops> fp8_ops() {
  const auto backend = cuda_backend();
  backend->set_device(0);
  auto ops = backend->make_ops(0);
  const auto problem = ops->fp8_problem();
  if (problem.empty()) return ops;
  MESSAGE("not checked: " << problem);
  return nullptr;
}

}  // namespace

TEST_SUITE("gpu/fp8") {
  TEST_CASE("codes and scales are the host's, by rows and by columns") {
    const auto ops = fp8_ops();
    if (ops == nullptr) return;
    fsdp::test::check_fp8_matrices(*ops);
    fsdp::test::check_fp8_columns(*ops);
  }

  TEST_CASE("every number of 16 bits, of every size beside others") {
    if (const auto ops = fp8_ops()) fsdp::test::check_fp8_numbers(*ops);
  }

  TEST_CASE("products are those of the numbers") {
    if (const auto ops = fp8_ops()) fsdp::test::check_fp8_products(*ops);
  }
}
