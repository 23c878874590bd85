// Functions of the driver, libcuda.so.1, that are looked up by name, and those of cuBLAS and cuDNN that return values.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "tests/gpu/stub_capture.hpp"
#include "tests/gpu/stub_card.hpp"

#pragma GCC visibility push(default)
extern "C" {

int cuInit(unsigned) {
  constexpr int kNoDevice = 100;  // CUDA_ERROR_NO_DEVICE
  return stub::visible().empty() ? kNoDevice : 0;
}
int cuDeviceGetCount(int* count) {
  *count = static_cast<int>(stub::visible().size());
  return 0;
}
int cuDeviceGet(int* device, int number) {
  *device = number;
  return 0;
}
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return 0;
}
int cuCtxGetCurrent(void** context) {
  static char place;
  *context = &place;
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "an error of the stub driver";
  return 0;
}

/// FSDP_STUB_CUBLAS=none emulates a card without memory for cuBLAS.
int cublasCreate_v2(void** handle) {
  constexpr int kAllocFailed = 3;  // CUBLAS_STATUS_ALLOC_FAILED
  if (const char* wish = std::getenv("FSDP_STUB_CUBLAS"); wish != nullptr && std::string_view(wish) == "none") {
    return kAllocFailed;
  }
  static char place;
  *handle = &place;
  return 0;
}
int cublasSetStream_v2(void*, const void* stream) {
  stub::set_library_stream(stub::EventKind::product, stream);
  return 0;
}
int cudnnSetStream(void*, const void* stream) {
  stub::set_library_stream(stub::EventKind::attention, stream);
  return 0;
}
int cublasGetMathMode(void*, int* mode) {
  *mode = 0;
  return 0;
}
int cublasGetPointerMode_v2(void*, int* mode) {
  *mode = 0;
  return 0;
}
std::size_t cublasLtGetVersion() { return std::size_t{CUDART_VERSION} * 10; }  // 12080: 12.8.0, as 120800
/// Returns one algorithm without a workspace. The result ends with {workspaceSize, state, wavesCount, reserved}; all
/// zero means success.
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void*, int* count) {
  *count = 1;
  return 0;
}

// cuDNN builds attention on Hopper from a graph: its frontend, compiled into PyTorch, computes the graph's workspace
// and asks these functions for an engine's additional workspace, which is zero here.
int cudnnCreate(void** handle) {
  static char place;
  *handle = &place;
  return 0;
}
int cudnnGetStream(void*, void** stream) {
  *stream = nullptr;
  return 0;
}
int cudnnBackendCreateDescriptor(int, void** descriptor) {
  static char place;
  *descriptor = &place;
  return 0;
}
int cudnnBackendGetAttribute(void*, int attribute, int type, std::int64_t asked, std::int64_t* count, void* values) {
  constexpr int kHeuristicResults = 202, kInt64 = 3, kInt32 = 23;  // cudnn_graph.h
  if (attribute == kHeuristicResults && count != nullptr) {
    *count = 1;
  } else if ((type == kInt64 || type == kInt32) && asked == 1 && values != nullptr) {
    std::memset(values, 0, type == kInt64 ? sizeof(std::int64_t) : sizeof(std::int32_t));
    if (count != nullptr) *count = 1;
  } else if (count != nullptr) {
    *count = 0;
  }
  return 0;
}

}  // extern "C"
#pragma GCC visibility pop
