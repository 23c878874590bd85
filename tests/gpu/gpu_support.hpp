#pragma once
// Shared by the GPU tests.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "lib/engine/collectives/device_backend.hpp"

/// Returns the back end; gpu_main has checked that it loads.
inline std::shared_ptr<fsdp::DeviceBackend> cuda_backend() {
  std::string why_not;
  auto backend = fsdp::load_cuda_backend(&why_not);
  if (backend == nullptr) FAIL("the back end loaded once and not again: " << why_not);
  return backend;
}

/// Returns start, start + 1, ... modulo 97: exact in every dtype, as are sums of a few of them.
inline at::Tensor small_integers(std::int64_t count, at::ScalarType dtype, std::int64_t start = 0, int device = 0) {
  const at::Device cuda(at::kCUDA, static_cast<c10::DeviceIndex>(device));
  return at::arange(start, start + count, at::TensorOptions(at::kLong)).remainder(97).to(cuda, dtype);
}

/// Compares on the host, bit for bit except for the sign of zero.
inline bool same(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a.to(at::kCPU).to(at::kDouble), b.to(at::kCPU).to(at::kDouble));
}
