#pragma once
// Logits of a micro-batch, and its losses by sequence, without a backward.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "lib/compute/tensor/sequences.hpp"
#include "lib/engine/runtime/model_runtime.hpp"

namespace fsdp {

/// Consumer of logits, of which only a part exists at a time.
/// \param logits_NV  of tokens [first, first + N) of the micro-batch: float32, contiguous; V is the vocabulary and, for
///                   matrix products, some columns more that mean nothing
using LogitsBody = std::function<void(std::int64_t first, at::Tensor& logits_NV)>;

/// Runs a micro-batch and calls `body` with the logits of its tokens, in order. Collective; a rank without rows takes
/// part and its body is not called.
void forward_logits(ModelRuntime& runtime, const MicroBatch& batch, const LogitsBody& body);

/// A row of a micro-batch, or a document of a packed one.
struct SequenceLoss {
  std::int64_t first, length;  ///< its tokens of the micro-batch
  double nats = 0;             ///< losses of its targets, times their weights
  double weight = 0;           ///< weights of these targets
};

/// Computes the losses of a micro-batch's sequences. Collective; waits for the device. \param batch  on the device
std::vector<SequenceLoss> sequence_losses(ModelRuntime& runtime, const MicroBatch& batch);

}  // namespace fsdp
