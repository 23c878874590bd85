#pragma once
// A forward pass that ends in logits, of which only a part exists at a time.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "lib/engine/runtime/model_runtime.hpp"

namespace fsdp {

/// \param logits_NV  of tokens [first, first + N) of the micro-batch: float32, contiguous; V is the vocabulary and, for
///                   matrix products, some columns more that mean nothing
using LogitsBody = std::function<void(std::int64_t first, at::Tensor& logits_NV)>;

/// Runs a micro-batch and calls `body` with the logits of its tokens, in order. Collective; a rank without rows takes
/// part and its body is not called.
void forward_logits(ModelRuntime& runtime, const MicroBatch& batch, const LogitsBody& body);

}  // namespace fsdp
