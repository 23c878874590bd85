// Copies between device and host on the stub driver: through pinned memory in pieces, and the host's waits.
#include "tests/support/torch_doctest.hpp"

#include <ATen/ops/ones.h>

#include "lib/engine/fsdp/host_inputs.hpp"
#include "tests/gpu/counted_run.hpp"
#include "tests/gpu/gpu_support.hpp"

namespace fsdp::test {
namespace {

/// Returns the driver calls of body()'s second run; the first run makes buffers and tables.
Counts counts_of(const std::function<void()>& body) {
  body();
  static_cast<void>(counted());
  body();
  return counted();
}

}  // namespace

TEST_SUITE("gpu/transfers") {
  TEST_CASE("large tensors are copied in pieces of 16 MiB, one in flight while the host handles another") {
    const auto ops = cuda_backend()->make_ops(0);
    const auto there = at::ones({10 << 20}, at::TensorOptions(at::kFloat).device(at::kCUDA));  // 40 MiB
    const auto here = at::ones({10 << 20}, at::kFloat);
    const auto to_host = counts_of([&] { ops->transfer(here, there); });
    CHECK(to_host.copies == 3);
    CHECK(to_host.waits == 3);  // one per piece; no copy of pageable memory
    const auto to_device = counts_of([&] { ops->transfer(there, here); });
    CHECK(to_device.copies == 3);
    CHECK(to_device.waits == 3);  // for the buffers, which earlier calls used
    CHECK(counts_of([&] { static_cast<void>(ops->to_host(there)); }).waits == 3);
    const auto blocking = counts_of([&] { here.copy_(there); });
    CHECK(blocking.copies == 1);
    CHECK(blocking.waits == 2);  // as for a copy to pageable memory
  }

  TEST_CASE("inputs on the host are copied once each way, and the host waits for nothing") {
    const auto ops = cuda_backend()->make_ops(0);
    const auto x = at::ones({1000, 64}, at::TensorOptions(at::kBFloat16).device(at::kCUDA));
    HostInputs inputs(*ops);
    const auto counts = counts_of([&] {
      for (int layer = 0; layer < 3; ++layer) inputs.keep(x);
      for (int layer = 0; layer < 3; ++layer) CHECK(inputs.take().sizes() == x.sizes());
    });
    CHECK(counts.copies == 6);
    CHECK(counts.waits == 0);
  }

  TEST_CASE("small tensors are sent without a wait and fetched with one") {
    const auto ops = cuda_backend()->make_ops(0);
    const auto there = at::ones({100}, at::TensorOptions(at::kFloat).device(at::kCUDA));
    const auto here = at::ones({100}, at::kFloat);
    const auto sent = counts_of([&] { static_cast<void>(ops->to_device(here)); });
    CHECK(sent.copies == 1);
    CHECK(sent.waits == 0);
    const auto fetched = counts_of([&] { static_cast<void>(ops->to_host(there)); });
    CHECK(fetched.copies == 1);
    CHECK(fetched.waits == 1);
    CHECK(ops->to_host(here).is_same(here));
    CHECK(ops->to_device(there).is_same(there));
    const auto locked = ops->lock_pages(here);
    const auto as_it_lies = counts_of([&] { static_cast<void>(ops->to_device(here)); });
    CHECK(as_it_lies.copies == 1);
    CHECK(as_it_lies.waits == 0);
  }
}

}  // namespace fsdp::test
