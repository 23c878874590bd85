#pragma once
// RAII wrappers of CUDA streams and events, and CUDA's error codes as exceptions.
#include <cuda_runtime_api.h>

#include <functional>
#include <utility>

namespace fsdp::detail {

/// \throws RuntimeFailure with CUDA's own text when `code` is not cudaSuccess
void check_cuda(cudaError_t code, const char* call);

/// Like cudaEventQuery / cudaStreamQuery: true when done, false when not yet. \throws RuntimeFailure otherwise
bool cuda_ready(cudaError_t query_result, const char* call);

/// A CUDA event on the device that is current at construction.
class UniqueEvent {
 public:
  explicit UniqueEvent(unsigned flags = cudaEventDisableTiming) {
    check_cuda(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreateWithFlags");
  }
  UniqueEvent(UniqueEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  UniqueEvent& operator=(UniqueEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  UniqueEvent(const UniqueEvent&) = delete;
  UniqueEvent& operator=(const UniqueEvent&) = delete;
  /// A pending event may be destroyed: CUDA frees it once it is reached.
  ~UniqueEvent() {
    if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  }

  cudaEvent_t get() const { return event_; }
  void record(cudaStream_t stream) const { check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  bool reached() const { return cuda_ready(cudaEventQuery(event_), "cudaEventQuery"); }
  /// Makes later work of `stream` wait for the event; the host does not wait.
  void make_wait(cudaStream_t stream) const {
    check_cuda(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Blocks until the event is reached. \throws RuntimeFailure if a rank of a pending collective is gone
using EventWait = std::function<void(const UniqueEvent&)>;

/// A stream of the current device, of highest priority, that does not wait for the legacy default stream. Transfers
/// must not queue behind the kernels they are meant to overlap with.
class UniqueStream {
 public:
  UniqueStream();
  UniqueStream(const UniqueStream&) = delete;
  UniqueStream& operator=(const UniqueStream&) = delete;
  /// Returns at once; work still queued is finished first.
  ~UniqueStream() { static_cast<void>(cudaStreamDestroy(stream_)); }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace fsdp::detail
