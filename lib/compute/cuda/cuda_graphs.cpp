// By the runtime rather than by at::cuda::CUDAGraph, which leaves the allocator inside the capture when one fails.
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

/// One share of a private pool of the caching allocator, whose memory stays as long as anyone has one.
class PoolShare {
 public:
  /// Takes what is allocated on the stream from there, until close().
  PoolShare(c10::cuda::CUDAStream stream, std::shared_ptr<const c10::MempoolId_t> pool)
      : device_(stream.device_index()), pool_(std::move(pool)) {
    allocator::beginAllocateToPool(device_, *pool_, [mine = stream.stream()](cudaStream_t s) { return s == mine; });
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
  std::shared_ptr<const c10::MempoolId_t> pool_;
  bool open_ = true;
};

class CudaGraph final : public RecordedWork {
 public:
  CudaGraph(cudaGraphExec_t graph, std::unique_ptr<PoolShare> memory, c10::DeviceIndex device)
      : graph_(graph), memory_(std::move(memory)), device_(device) {}
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  /// What is under way is done first.
  ~CudaGraph() override { static_cast<void>(cudaGraphExecDestroy(graph_)); }
  void run() override {
    check_cuda(cudaGraphLaunch(graph_, c10::cuda::getCurrentCUDAStream(device_).stream()), "cudaGraphLaunch");
  }

 private:
  cudaGraphExec_t graph_;
  std::unique_ptr<PoolShare> memory_;
  c10::DeviceIndex device_;
};

/// A stream whose work is written down, from construction to end() or destruction.
class Capture {
 public:
  explicit Capture(cudaStream_t stream) : stream_(stream) {
    // Of this thread alone: others may use the device meanwhile.
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  /// An exception is on its way. CUDA keeps errors of a capture as its last one, and ends it all the same.
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
    // Now rather than with its first launch: where the driver has no room for it, it is refused like any other.
    const auto uploaded = cudaGraphUpload(ready, stream);
    if (uploaded != cudaSuccess) static_cast<void>(cudaGraphExecDestroy(ready));
    check_cuda(uploaded, "cudaGraphUpload");
    return ready;
  }

 private:
  cudaStream_t stream_;
};

std::atomic<int> pools_alive = 0;

/// The number of a pool, which ends with its last share. PyTorch keeps cuBLAS's workspace of each stream, and that of
/// the captures lies in their pool: until it goes, so do not the segments around it. All of them can go where no graph
/// is left that uses one: products make them anew.
std::shared_ptr<const c10::MempoolId_t> new_pool() {
  ++pools_alive;
  return {new c10::MempoolId_t(at::cuda::graph_pool_handle()), [](const c10::MempoolId_t* id) {
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
    // What ran before it was recorded has left as much as the recording takes.
    empty_cache();
    const c10::cuda::CUDAStreamGuard stream_guard(*stream_);
    auto memory = std::make_unique<PoolShare>(*stream_, std::move(pool));
    Capture capture(stream_->stream());
    body();
    auto* const graph = capture.end();
    memory->close();
    return std::make_unique<CudaGraph>(graph, std::move(memory), device_);
  }
  void wait() const override { c10::cuda::getCurrentCUDAStream(device_).synchronize(); }
  void empty_cache() const override { allocator::emptyCache(); }

 private:
  c10::DeviceIndex device_;
  /// Of the captures alone: the default stream cannot be captured.
  mutable std::optional<c10::cuda::CUDAStream> stream_;
  mutable std::weak_ptr<const c10::MempoolId_t> pool_;  ///< its number, while anyone has a share
};

}  // namespace

std::unique_ptr<WorkRecorder> make_cuda_recorder(c10::DeviceIndex device) {
  return std::make_unique<CudaRecorder>(device);
}

}  // namespace fsdp
