#include "lib/compute/device/memory_recorder.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <thread>

#include "lib/compute/meta/meta_ops.hpp"

using fsdp::MemoryCategory;
using fsdp::MemoryRecorder;
using fsdp::MemoryScope;

TEST_SUITE("memory/recorder") {
  TEST_CASE("meta tensors are recorded with size, purpose and phase, and when they are freed") {
    const MemoryRecorder recorder(false);
    {
      const MemoryScope scope(MemoryCategory::logits);
      recorder.tape()->begin("head", "compute");
      const auto tensor = at::empty({10, 10}, at::TensorOptions(at::kBFloat16).device(at::kMeta));
    }

    const auto& log = recorder.log();
    REQUIRE(log.records.size() == 2);
    CHECK(log.records[0].bytes == 200);
    CHECK(log.records[0].category == MemoryCategory::logits);
    CHECK(log.phases[static_cast<std::size_t>(log.records[0].phase)] == "head");
    CHECK(log.records[1].bytes == -200);
    CHECK(log.records[1].block == log.records[0].block);
  }

  TEST_CASE("views allocate nothing, and a tensor that outlives its recorder is harmless") {
    at::Tensor tensor;
    {
      const MemoryRecorder recorder(false);
      tensor = at::zeros({8}, at::TensorOptions(at::kFloat).device(at::kMeta));
      const auto view = tensor.view({2, 4}).narrow(0, 0, 1);
      CHECK(recorder.log().records.size() == 1);
    }
    tensor.reset();
  }

  TEST_CASE("other threads are not recorded, and a thread has one recorder") {
    const MemoryRecorder recorder(false);

    std::thread([] { const auto other = at::empty({8}, at::TensorOptions(at::kFloat).device(at::kMeta)); }).join();

    CHECK(recorder.log().records.empty());
    CHECK_THROWS_AS(MemoryRecorder(false), std::logic_error);
  }

  TEST_CASE("beside a GPU, host memory is marked; on CPUs there is only host memory") {
    for (const bool gpu : {true, false}) {
      const MemoryRecorder recorder(gpu);
      const auto ops = gpu ? fsdp::make_meta_cuda_ops(recorder.tape(), std::make_shared<fsdp::WorkLog>(), {})
                           : fsdp::make_meta_cpu_ops(recorder.tape(), std::make_shared<fsdp::WorkLog>(), 1);
      const MemoryScope scope(MemoryCategory::optimizer, true);

      const auto tensor = at::empty({8}, at::TensorOptions(at::kFloat).device(ops->host()));

      CHECK(ops->is_on_host(tensor));
      CHECK(recorder.log().records.back().on_host == gpu);
      CHECK(ops->on_host() == !gpu);
      CHECK(ops->to_device(tensor).is_same(tensor) == !gpu);
    }
  }

  TEST_CASE("shared-memory segments are recorded") {
    const MemoryRecorder recorder(false);
    const auto ops = fsdp::make_meta_cpu_ops(recorder.tape(), std::make_shared<fsdp::WorkLog>(), 1);
    ops->count_shared_memory(4096);
    REQUIRE(recorder.log().records.size() == 1);
    CHECK(recorder.log().records[0].bytes == 4096);
  }
}
