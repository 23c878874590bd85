#pragma once
// Tensors of the host that the device reads and writes by itself.
#include <ATen/core/Tensor.h>

#include <memory>

#include "lib/compute/cuda/cuda_handles.hpp"
#include "lib/compute/ops/place.hpp"

namespace fsdp::detail {

/// A copy of x, on the host, in pinned memory of PyTorch's allocator, which keeps that until what the device was asked
/// to read of it is read.
at::Tensor pinned_copy(const at::Tensor& x);

/// Lets the device reach x, on the host, as long as the result lives.
/// \return null where the driver refuses: copies then go as from any memory
std::shared_ptr<void> lock_pages_of(const at::Tensor& x);

/// A copy under way, which holds both tensors and is over with `done`.
std::unique_ptr<Transfer> transfer_until(UniqueEvent done, const at::Tensor& to, const at::Tensor& from);

}  // namespace fsdp::detail
