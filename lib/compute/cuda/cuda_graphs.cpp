// CUDA graphs through the CUDA runtime, since at::cuda::CUDAGraph leaves the allocator in capture mode when a capture
// fails.
#include "lib/compute/cuda/cuda_graphs.hpp"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "lib/compute/cuda/cuda_handles.hpp"

namespace at::cuda {
/// Declared in ATen/cuda/CUDAContextLight.h, which needs headers of libraries that this program does not use.
TORCH_CUDA_CPP_API void clearCublasWorkspaces();
}  // namespace at::cuda

namespace fsdp {
namespace {

using detail::check_cuda;
namespace allocator = c10::cuda::CUDACachingAllocator;
using PoolId = decltype(at::cuda::graph_pool_handle());  // its namespace moved in 2.9

/// A share of a private pool of the caching allocator. The pool keeps its memory until the last share is gone.
class PoolShare {
 public:
  /// Allocations on the stream come from the pool until close().
  PoolShare(c10::cuda::CUDAStream stream, std::shared_ptr<const PoolId> pool)
      : device_(stream.device_index()), pool_(std::move(pool)) {
    allocator::beginAllocateToPool(device_, *pool_,
                                   [own_stream = stream.stream()](cudaStream_t s) { return s == own_stream; });
  }
  PoolShare(const PoolShare&) = delete;
  PoolShare& operator=(const PoolShare&) = delete;
  ~PoolShare() {
    close();
    allocator::releasePool(device_, *pool_);
  }
  void close() {
    if (std::exchange(open_, false)) allocator::endAllocateToPool(device_, *pool_);
  }

 private:
  c10::DeviceIndex device_;
  std::shared_ptr<const PoolId> pool_;
  bool open_ = true;
};

class CudaGraph final : public RecordedWork {
 public:
  CudaGraph(cudaGraphExec_t graph, std::unique_ptr<PoolShare> memory, c10::DeviceIndex device)
      : graph_(graph), memory_(std::move(memory)), device_(device) {}
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  /// CUDA finishes running replays first.
  ~CudaGraph() override { static_cast<void>(cudaGraphExecDestroy(graph_)); }
  void run() override {
    check_cuda(cudaGraphLaunch(graph_, c10::cuda::getCurrentCUDAStream(device_).stream()), "cudaGraphLaunch");
  }

 private:
  cudaGraphExec_t graph_;
  std::unique_ptr<PoolShare> memory_;
  c10::DeviceIndex device_;
};

/// Captures the work of a stream from construction to end() or destruction.
class Capture {
 public:
  explicit Capture(cudaStream_t stream) : stream_(stream) {
    // Thread-local mode: other threads may use the device during the capture.
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  /// Ends a capture after an exception. CUDA keeps an error of the capture as its last error, which is cleared here.
  ~Capture() {
    if (stream_ == nullptr) return;
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(stream_, &graph) == cudaSuccess && graph != nullptr)
      static_cast<void>(cudaGraphDestroy(graph));
    static_cast<void>(cudaGetLastError());
  }
  cudaGraphExec_t end() {
    cudaGraph_t graph = nullptr;
    auto* const stream = std::exchange(stream_, nullptr);
    check_cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    cudaGraphExec_t ready = nullptr;
    const auto code = cudaGraphInstantiateWithFlags(&ready, graph, 0);
    static_cast<void>(cudaGraphDestroy(graph));
    check_cuda(code, "cudaGraphInstantiate");
    // Upload now rather than with the first launch, so that a lack of memory is reported here.
    const auto uploaded = cudaGraphUpload(ready, stream);
    if (uploaded != cudaSuccess) static_cast<void>(cudaGraphExecDestroy(ready));
    check_cuda(uploaded, "cudaGraphUpload");
    return ready;
  }

 private:
  cudaStream_t stream_;
};

std::atomic<int> pools_alive = 0;

/// Creates the id of a pool, which ends with its last share. PyTorch keeps a cuBLAS workspace for each stream, and the
/// workspace of the capture stream is in the pool, where it keeps its segment alive. When no graph is left, all
/// workspaces are freed; later products allocate them again.
std::shared_ptr<const PoolId> new_pool() {
  ++pools_alive;
  return {new PoolId(at::cuda::graph_pool_handle()), [](const PoolId* id) {
            delete id;
            if (--pools_alive == 0) at::cuda::clearCublasWorkspaces();
          }};
}

class CudaRecorder final : public WorkRecorder {
 public:
  explicit CudaRecorder(c10::DeviceIndex device) : device_(device) {}

  std::unique_ptr<RecordedWork> record(const std::function<void()>& body) const override {
    const c10::cuda::CUDAGuard device_guard(device_);
    if (!stream_) stream_ = c10::cuda::getStreamFromPool(false, device_);
    auto pool = pool_.lock();
    if (pool == nullptr) {
      pool = new_pool();
      pool_ = pool;
    }
    // The uncaptured run has left as much cached memory as the capture needs.
    allocator::emptyCache();
    const c10::cuda::CUDAStreamGuard stream_guard(*stream_);
    auto memory = std::make_unique<PoolShare>(*stream_, std::move(pool));
    Capture capture(stream_->stream());
    body();
    auto* const graph = capture.end();
    memory->close();
    return std::make_unique<CudaGraph>(graph, std::move(memory), device_);
  }

 private:
  c10::DeviceIndex device_;
  /// Stream of the captures, since the default stream cannot be captured.
  mutable std::optional<c10::cuda::CUDAStream> stream_;
  mutable std::weak_ptr<const PoolId> pool_;  ///< id of the pool while a share exists
};

}  // namespace

std::unique_ptr<WorkRecorder> make_cuda_recorder(c10::DeviceIndex device) {
  return std::make_unique<CudaRecorder>(device);
}

}  // namespace fsdp
