#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <filesystem>

#include "lib/base/types/error.hpp"
#include "lib/ranks/thread_group.hpp"
#include "tests/gpu/gpu_support.hpp"

namespace {
const at::Device kCuda(at::kCUDA, 0);
}  // namespace

TEST_SUITE("gpu/device") {
  TEST_CASE("info: every field is filled and plausible") {
    const auto backend = cuda_backend();
    REQUIRE(backend->device_count() >= 1);
    for (int device = 0; device < backend->device_count(); ++device) {
      const auto info = backend->info(device);
      CAPTURE(device);
      CAPTURE(info.name);
      CHECK_FALSE(info.name.empty());
      CHECK(info.compute_major >= 5);
      CHECK(info.total_bytes > (std::int64_t{1} << 30));
      CHECK(info.driver.major >= info.runtime.major);  // a driver supports its own CUDA version and older ones
      CHECK(info.runtime.major >= 11);
      CHECK(info.nccl >= fsdp::LibraryVersion{2, 10, 0});
      CHECK(info.nccl_built >= fsdp::LibraryVersion{2, 10, 0});
      CHECK(info.pci_bus_id.size() >= 12);
      CHECK(info.numa_node >= -1);
      MESSAGE(info.name << ", " << info.compute_major << "." << info.compute_minor << ", NCCL " << info.nccl.major
                        << "." << info.nccl.minor << "." << info.nccl.patch << ", " << info.pci_bus_id << ", NUMA node "
                        << info.numa_node);
    }
  }

  TEST_CASE("info: a device that does not exist raises RequestError, also across the library boundary") {
    const auto backend = cuda_backend();
    CHECK_THROWS_AS(backend->info(backend->device_count()), fsdp::RequestError);
    CHECK_THROWS_AS(backend->set_device(-1), fsdp::RequestError);
  }

  TEST_CASE("kernels: device tensors compute in a program that links only libtorch_cpu") {
    cuda_backend()->set_device(0);
    const auto a = small_integers(12, at::kFloat).view({3, 4});
    CHECK(same(a.mm(a.t()), a.to(at::kCPU).mm(a.to(at::kCPU).t())));
  }

  TEST_CASE("memory: allocations and peaks are counted, reset_peak restarts the peak") {
    const auto backend = cuda_backend();
    constexpr std::int64_t kBytes = 64 << 20;
    const auto before = backend->memory(0);
    {
      const auto tensor = at::empty({kBytes}, at::TensorOptions(at::kByte).device(kCuda));
      const auto during = backend->memory(0);
      CHECK(during.allocated_bytes - before.allocated_bytes == kBytes);
      CHECK(during.reserved_bytes >= during.allocated_bytes);
    }
    const auto after = backend->memory(0);
    CHECK(after.allocated_bytes == before.allocated_bytes);
    CHECK(after.allocated_peak_bytes >= before.allocated_bytes + kBytes);
    CHECK(after.reserved_peak_bytes >= after.allocated_peak_bytes);
    backend->reset_peak(0);
    CHECK(backend->memory(0).allocated_peak_bytes == after.allocated_bytes);
  }

  TEST_CASE("memory: a request that cannot be served is counted as out of memory") {
    const auto backend = cuda_backend();
    const auto before = backend->memory(0);
    const auto too_much_bytes = backend->info(0).total_bytes * 2;
    CHECK_THROWS(at::empty({too_much_bytes}, at::TensorOptions(at::kByte).device(kCuda)));
    CHECK(backend->memory(0).num_ooms == before.num_ooms + 1);
    CHECK(backend->memory(0).num_alloc_retries >= before.num_alloc_retries);
  }

  TEST_CASE("host collectives: CUDA tensors of two ranks on one device are staged and summed exactly") {
    cuda_backend();
    fsdp::run_thread_ranks(2, 2, [](fsdp::ProcessGroup& group) {
      const auto collectives = fsdp::make_host_collectives(group);
      const auto mine = small_integers(5, at::kBFloat16, 10 * group.rank());
      const auto full = at::zeros({10}, mine.options());
      const fsdp::TensorGather gather{mine, full};
      collectives->all_gather(std::span(&gather, 1))->wait();
      CHECK(same(full.narrow(0, 0, 5), small_integers(5, at::kBFloat16, 0)));
      CHECK(same(full.narrow(0, 5, 5), small_integers(5, at::kBFloat16, 10)));

      const auto grad = small_integers(10, at::kBFloat16, group.rank());
      const auto shard = at::zeros({5}, at::TensorOptions(at::kFloat).device(kCuda));
      const fsdp::TensorReduce reduce{grad, shard, true};
      for (int round = 1; round <= 2; ++round) {
        collectives->reduce_scatter(std::span(&reduce, 1))->wait();
        const auto sum = small_integers(10, at::kFloat, 0) + small_integers(10, at::kFloat, 1);
        CHECK(same(shard, sum.narrow(0, 5 * group.rank(), 5) * round));
      }
    });
  }
}
