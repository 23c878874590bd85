// Recorded work as CUDA graphs on the stub driver: the memory of a capture, the calls that a driver refuses during a
// capture, and the state of allocator and device after a failed one.
#include "tests/support/torch_doctest.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <memory>
#include <string>

#include "lib/base/types/error.hpp"
#include "lib/compute/ops/device_work.hpp"
#include "tests/gpu/gpu_support.hpp"

namespace at::cuda {
/// Declared as in lib/compute/cuda/cuda_graphs.cpp.
TORCH_CUDA_CPP_API void clearCublasWorkspaces();
}  // namespace at::cuda

namespace fsdp {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

const auto kFloats = at::TensorOptions(at::kFloat).device(at::kCUDA);

std::int64_t reserved() {
  allocator::emptyCache();
  return allocator::getDeviceStats(0).reserved_bytes[kAll].current;
}

cudaStream_t current() { return c10::cuda::getCurrentCUDAStream(0).stream(); }

/// Returns the error that ends recording or running `body`; empty if there is none.
std::string problem_of(const Ops& ops, const std::function<void()>& body) {
  try {
    ops.recorder()->record(body)->run();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

/// Runs `body` in a child process; true if a signal ends the child.
bool ends_a_child(const std::function<void()>& body) {
  const auto child = ::fork();
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);  // remove doctest's handler
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status);
}

}  // namespace

TEST_SUITE("gpu/graphs") {
  TEST_CASE("a recording keeps the memory it computes in and releases it at the end") {
    const auto ops = cuda_backend()->make_ops(0);
    REQUIRE(ops->recorder() != nullptr);
    const auto x = at::ones({1 << 20}, kFloats);
    const auto before = reserved();
    constexpr std::int64_t kMiB = 1 << 20;
    {
      at::Tensor kept;
      const auto work = ops->recorder()->record([&] {
        auto twice = x * 2;
        auto more = twice + x;
        twice.reset();
        kept = more.mul_(3) + 1;  // reuses the memory of `twice`
      });
      CHECK(reserved() - before == 20 * kMiB);  // two tensors of 4 MiB in one segment
      for (int i = 0; i < 3; ++i) work->run();
      const auto others = ops->recorder()->record([&] { static_cast<void>(x * 5); });  // in the first one's memory
      others->run();
      CHECK(reserved() - before == 20 * kMiB);
    }
    CHECK(reserved() == before);
  }

  TEST_CASE("after the last recording nothing of its memory pool remains, nor cuBLAS workspaces") {
    const auto ops = cuda_backend()->make_ops(0);
    const auto x = at::ones({1024, 1024}, kFloats);
    static_cast<void>(at::mm(x, x));
    at::cuda::clearCublasWorkspaces();  // freed with the last pool; on Hopper a segment of its own
    const auto before = reserved();
    for (const bool fails : {false, true}) {
      const auto problem = problem_of(*ops, [&] {
        const auto square = at::mm(x, x);
        if (fails) throw RuntimeFailure("of its own");
      });
      CHECK(problem.empty() != fails);
      CHECK(reserved() == before);
    }
  }

  TEST_CASE("during a capture the driver refuses waits, reads and allocations") {
    const auto ops = cuda_backend()->make_ops(0);
    const auto x = at::ones({64}, kFloats);
    const auto before = reserved();
    const auto refuses = [&](const std::function<void()>& body) {
      const auto problem = problem_of(*ops, body);
      CAPTURE(problem);
      CHECK_FALSE(problem.empty());
      CHECK(cudaGetLastError() == cudaSuccess);
      CHECK(reserved() == before);
      CHECK(problem_of(*ops, [&] { static_cast<void>(x + 1); }) == std::string());
      CHECK(reserved() == before);
    };
    refuses([&] { static_cast<void>(x.sum().item<float>()); });
    refuses([&] { static_cast<void>(x.to(at::kCPU)); });
    refuses([&] { static_cast<void>(at::ones({64}).to(at::kCUDA)); });  // pageable memory
    // Pinned memory is refused too, since a later copy may reuse it; this call allocates it before the capture.
    static_cast<void>(ops->to_device(at::ones({64})));
    refuses([&] { static_cast<void>(ops->to_device(at::ones({64}))); });
    refuses([] { cudaDeviceSynchronize(); });
    refuses([] { cudaStreamSynchronize(current()); });
    refuses([] { cudaStreamQuery(current()); });
    void* memory = nullptr;
    refuses([&] { cudaMalloc(&memory, 4096); });
    cudaEvent_t event = nullptr;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaEventRecord(event, current());
    refuses([&] { cudaStreamWaitEvent(current(), event, 0); });  // recorded before the capture
    refuses([&] {
      cudaEventRecord(event, current());
      cudaEventQuery(event);
    });
    cudaEventDestroy(event);
    CHECK_THROWS_AS(ops->recorder()->record([] { throw RuntimeFailure("of its own"); }), RuntimeFailure);
    CHECK(reserved() == before);
  }

  TEST_CASE("other streams join a capture at the event they wait for, and must rejoin before it ends") {
    const auto ops = cuda_backend()->make_ops(0);
    const auto x = at::ones({64}, kFloats);
    const auto other = c10::cuda::getStreamFromPool(true, 0);
    for (const bool joins : {true, false}) {
      cudaEvent_t fork = nullptr, join = nullptr;
      cudaEventCreateWithFlags(&fork, cudaEventDisableTiming);
      cudaEventCreateWithFlags(&join, cudaEventDisableTiming);
      const auto problem = problem_of(*ops, [&] {
        const auto mine = current();
        cudaEventRecord(fork, mine);
        cudaStreamWaitEvent(other.stream(), fork, 0);
        {
          const c10::cuda::CUDAStreamGuard guard(other);
          x.add_(1);
        }
        cudaEventRecord(join, other.stream());
        if (joins) cudaStreamWaitEvent(mine, join, 0);
        x.add_(1);
      });
      CHECK(problem.empty() == joins);
      cudaEventDestroy(fork);
      cudaEventDestroy(join);
    }
  }

  TEST_CASE("the stub driver aborts when a kernel argument exceeds its allocation") {
    const auto ops = cuda_backend()->make_ops(0);
    const auto x = at::ones({4096, 4096}, kFloats);  // in a segment of its own
    const auto dies = [&](std::int64_t rows) {
      return ends_a_child([&] {
        const auto view =
            at::for_blob(x.mutable_data_ptr(), {rows, 4096}).options(kFloats).target_device(x.device()).make_tensor();
        static_cast<void>(ops->gated(GateActivation::silu, view, view));
      });
    };
    CHECK_FALSE(dies(4096));
    CHECK(dies(4097));
  }

  TEST_CASE("the stub driver aborts on a grid size that no GPU supports") {
    static const char kernel = 0;
    const auto dies = [&](unsigned rows) {
      return ends_a_child([&] {
        int pass = 0;
        void* arguments[] = {&pass};
        cudaLaunchKernel(&kernel, dim3{1, rows, 1}, dim3{32, 1, 1}, arguments, 0, current());
      });
    };
    CHECK_FALSE(dies(65535));
    CHECK(dies(65536));
    CHECK(dies(0));
  }

  TEST_CASE("the stub driver aborts when a graph uses freed memory") {
    const auto ops = cuda_backend()->make_ops(0);
    auto logits = at::ones({4096, 4096}, kFloats);  // in a segment of its own
    const auto targets = at::ones({4096}, kFloats.dtype(at::kInt));
    const auto work = ops->recorder()->record([&] {
      StepSums loss;
      ops->cross_entropy(loss, logits, targets, 4096, 1.0);
    });
    work->run();
    const auto dies = [](RecordedWork& recorded) { return ends_a_child([&] { recorded.run(); }); };
    CHECK_FALSE(dies(*work));
    logits.reset();
    allocator::emptyCache();
    CHECK(dies(*work));
  }
}

}  // namespace fsdp
