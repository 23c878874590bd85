#include "lib/compute/cuda/cuda_handles.hpp"

#include <fmt/format.h>

#include "lib/base/types/error.hpp"

namespace fsdp::detail {

void check_cuda(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  // The error stays CUDA's "last error" until it is read, and would be blamed on an innocent later call.
  static_cast<void>(cudaGetLastError());
  throw RuntimeFailure(fmt::format("{} failed: {} ({})", call, cudaGetErrorString(code), cudaGetErrorName(code)));
}

bool cuda_ready(cudaError_t query_result, const char* call) {
  if (query_result == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  check_cuda(query_result, call);
  return true;
}

UniqueStream::UniqueStream() {
  int lowest = 0;
  int highest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
  check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest), "cudaStreamCreateWithPriority");
}

}  // namespace fsdp::detail
