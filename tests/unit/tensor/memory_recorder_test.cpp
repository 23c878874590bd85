#include "lib/tensor/memory_recorder.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <thread>

#include "lib/tensor/host_allocator.hpp"

using fsdp::MemoryCategory;
using fsdp::MemoryRecorder;
using fsdp::MemoryScope;

TEST_SUITE("tensor/memory recorder") {
  TEST_CASE("meta tensors are recorded with their size, purpose and moment, and when they go") {
    const MemoryRecorder recorder({});
    {
      const MemoryScope scope(MemoryCategory::logits);
      fsdp::begin_phase("head");
      const auto tensor = at::empty({10, 10}, at::TensorOptions(at::kBFloat16).device(at::kMeta));
    }

    const auto& log = recorder.log();
    REQUIRE(log.records.size() == 2);
    CHECK(log.records[0].bytes == 200);
    CHECK(log.records[0].category == MemoryCategory::logits);
    CHECK(log.moments[static_cast<std::size_t>(log.records[0].phase)] == "head");
    CHECK(log.records[1].bytes == -200);
    CHECK(log.records[1].block == log.records[0].block);
  }

  TEST_CASE("views allocate nothing, and a tensor that outlives its recorder is harmless") {
    at::Tensor tensor;
    {
      const MemoryRecorder recorder({});
      tensor = at::zeros({8}, at::TensorOptions(at::kFloat).device(at::kMeta));
      const auto view = tensor.view({2, 4}).narrow(0, 0, 1);
      CHECK(recorder.log().records.size() == 1);
    }
    CHECK_FALSE(fsdp::simulating());
    tensor.reset();
  }

  TEST_CASE("another thread is not recorded, and a thread has one recorder") {
    const MemoryRecorder recorder({});

    std::thread([] { const auto other = at::empty({8}, at::TensorOptions(at::kFloat).device(at::kMeta)); }).join();

    CHECK(recorder.log().records.empty());
    CHECK_THROWS_AS(MemoryRecorder({}), std::logic_error);
  }

  TEST_CASE("beside a GPU the host's memory is marked; on CPUs there is only the host's") {
    for (const auto device : {fsdp::SimulatedDevice::cuda, fsdp::SimulatedDevice::cpu}) {
      fsdp::SimulatedTraits traits;
      traits.device = device;
      const MemoryRecorder recorder(traits);
      const MemoryScope scope(MemoryCategory::optimizer, true);

      const auto tensor = at::empty({8}, at::TensorOptions(at::kFloat).device(fsdp::host_device()));

      CHECK(fsdp::recorded_on_host(tensor) == (device == fsdp::SimulatedDevice::cuda));
      CHECK(fsdp::runs_on_host(tensor.device()) == (device == fsdp::SimulatedDevice::cpu));
    }
  }

  TEST_CASE("windows are counted where the run is: in the recorder, or by the host allocator") {
    const auto before = fsdp::host_memory_stats().current_bytes;
    {
      const MemoryRecorder recorder({});
      fsdp::count_external_host_memory(4096);
      REQUIRE(recorder.log().records.size() == 1);
      CHECK(recorder.log().records[0].bytes == 4096);
    }
    CHECK(fsdp::host_memory_stats().current_bytes == before);
  }
}
