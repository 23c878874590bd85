#pragma once
// The type of a model, which config.json states once for all tensors.
#include <cstdint>
#include <functional>
#include <string>

#include "lib/checkpoints/source/source.hpp"

namespace fsdp {

/// Returns the name in PyTorch of the floating-point type that holds most bytes; "float32" if no tensor has any.
/// \param bytes_of  bytes for which a tensor counts
std::string main_dtype(const Source& source, const std::function<std::uint64_t(const SourceTensor&)>& bytes_of);

}  // namespace fsdp
