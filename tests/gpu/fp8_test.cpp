// fp8 products on the GPU: casts equal the host's bit for bit. The GPU uses the conversion instruction, which the
// emulated kernels do not.
#include "tests/gpu/gpu_support.hpp"
#include "tests/support/fp8_checks.hpp"

namespace {

/// Returns null and prints a message if this GPU has no fp8 products.
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
  TEST_CASE("codes and scales equal the host's, by rows and by columns") {
    const auto ops = fp8_ops();
    if (ops == nullptr) return;
    fsdp::test::check_fp8_matrices(*ops);
    fsdp::test::check_fp8_columns(*ops);
  }

  TEST_CASE("codes of every 16-bit number, at several magnitudes") {
    if (const auto ops = fp8_ops()) fsdp::test::check_fp8_numbers(*ops);
  }

  TEST_CASE("products equal those of the numbers that the codes stand for") {
    const auto ops = fp8_ops();
    if (ops == nullptr) return;
    // Before Blackwell, tensor cores align the products of both kinds of sums; `exact` adds partial sums in float32.
    const bool aligns = cuda_backend()->info(0).compute_major < 10;
    fsdp::test::check_fp8_products(*ops, aligns ? fsdp::test::kAlignedSums : 0);
  }
}
