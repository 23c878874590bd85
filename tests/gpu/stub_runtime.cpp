// The functions of CUDA's runtime that PyTorch and the CUDA back end call. What is not here is the real library's,
// which finds no driver that it could use and reports an error.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/gpu/stub_card.hpp"

namespace {

using stub::card;
using stub::memory;

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t failed(cudaError_t code) { return last_error = code; }

/// Streams, events and the like: any address that is not null.
template <typename Handle>
cudaError_t make_handle(Handle* out) {
  static char place;
  *out = reinterpret_cast<Handle>(&place);
  return cudaSuccess;
}

/// What kernels would have written is zero; what they would read is nobody's business.
cudaError_t copy(void* to, const void* from, std::size_t count) {
  if (memory().contains(to)) return cudaSuccess;
  if (memory().contains(from)) {
    std::memset(to, 0, count);
  } else {
    std::memmove(to, from, count);
  }
  return cudaSuccess;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// --- kernels: registered nowhere, launched into nothing
// ---------------------------------------------------------------
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, cudaStream_t) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes, void* stream) {
  *grid = *block = dim3{1, 1, 1};
  *shared_bytes = 0;
  *static_cast<cudaStream_t*>(stream) = nullptr;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void*) { return make_handle(kernel); }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, std::size_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) { return cudaSuccess; }
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = 10 * card().major + card().minor;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(card().shared_bytes_per_block);
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int block_size,
                                                                   std::size_t, unsigned) {
  *blocks = block_size > card().threads_per_multiprocessor ? 1 : card().threads_per_multiprocessor / block_size;
  return cudaSuccess;
}

// --- the device
// -------------------------------------------------------------------------------------------------------
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : failed(cudaErrorInvalidDevice); }
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "stub %s", card().name.c_str());
  properties->major = card().major;
  properties->minor = card().minor;
  properties->totalGlobalMem = card().total_bytes;
  properties->multiProcessorCount = card().multiprocessors;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = card().shared_bytes_per_block;
  properties->sharedMemPerMultiprocessor = card().shared_bytes_per_block + (1 << 10);
  properties->reservedSharedMemPerBlock = 1 << 10;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 1 << 16;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = card().threads_per_multiprocessor;
  properties->maxBlocksPerMultiProcessor = 32;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 0x7fffffff;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 0xffff;
  properties->l2CacheSize = 40 << 20;
  properties->textureAlignment = 512;
  properties->concurrentKernels = properties->unifiedAddressing = properties->streamPrioritiesSupported = 1;
  properties->asyncEngineCount = 2;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, 0);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(properties.sharedMemPerBlock);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(properties.sharedMemPerMultiprocessor);
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = properties.maxThreadsPerMultiProcessor;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = properties.maxThreadsPerBlock;
      break;
    case cudaDevAttrWarpSize:
      *value = properties.warpSize;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int) {
  std::snprintf(id, static_cast<std::size_t>(length), "0000:00:00.0");
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  *function = ::dlsym(RTLD_DEFAULT, symbol);
  if (status != nullptr) *status = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return *function != nullptr ? cudaSuccess : failed(cudaErrorSymbolNotFound);
}

// --- errors: the last one stays until it is read
// ----------------------------------------------------------------------
cudaError_t cudaGetLastError() {
  const auto code = last_error;
  last_error = cudaSuccess;
  return code;
}
cudaError_t cudaPeekAtLastError() { return last_error; }

// --- memory
// -----------------------------------------------------------------------------------------------------------
cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  *address = bytes == 0 ? nullptr : memory().allocate(bytes);
  return bytes == 0 || *address != nullptr ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* address) {
  return address == nullptr || memory().free(address) ? cudaSuccess : failed(cudaErrorInvalidValue);
}
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  *free_bytes = memory().free_bytes();
  *total_bytes = card().total_bytes;
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned) {
  constexpr std::size_t kPage_bytes = 4096;
  *address = std::aligned_alloc(kPage_bytes, (bytes + kPage_bytes - 1) / kPage_bytes * kPage_bytes);
  return *address != nullptr ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void* address) {
  std::free(address);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void*, std::size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  *attributes = {};
  const bool on_gpu = memory().contains(address);
  attributes->type = on_gpu ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  attributes->devicePointer = on_gpu ? const_cast<void*>(address) : nullptr;
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t count, cudaMemcpyKind) { return copy(to, from, count); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t count, cudaMemcpyKind, cudaStream_t) {
  return copy(to, from, count);
}
cudaError_t cudaMemcpyToSymbol(const void*, const void*, std::size_t, std::size_t, cudaMemcpyKind) {
  return cudaSuccess;
}
cudaError_t cudaMemset(void*, int, std::size_t) { return cudaSuccess; }
cudaError_t cudaMemsetAsync(void*, int, std::size_t, cudaStream_t) { return cudaSuccess; }

// --- streams and events: all work is done as soon as it is asked for
// --------------------------------------------------
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) { return make_handle(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long*, cudaGraph_t*,
                                     const cudaGraphNode_t**, const cudaGraphEdgeData**, std::size_t*) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return make_handle(event); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return make_handle(event); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t, cudaStream_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1.0f;
  return cudaSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
