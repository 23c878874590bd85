#pragma once
// Reads whole tensors from safetensors files.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <string>

#include "lib/compute/tensor/scalar_type.hpp"
#include "lib/formats/safetensors.hpp"

namespace fsdp::test {

/// Reads a tensor of type float32, int32 or uint8.
inline at::Tensor read_tensor(const SafetensorsReader& file, const std::string& name) {
  const auto& entry = file.tensors().at(name);
  auto tensor = at::empty(entry.shape, to_scalar_type(entry.dtype));
  file.read_rows(name, 0, entry.shape.at(0),
                 {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())});
  return tensor;
}

}  // namespace fsdp::test
