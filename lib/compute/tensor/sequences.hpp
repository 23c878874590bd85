#pragma once
// The sequences of a micro-batch, which are its rows or its packed documents. Shapes: N tokens, S sequences.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lib/compute/tensor/layer.hpp"

namespace fsdp {

/// Tokens [first, first + length) of the micro-batch, without those that it shares.
using Sequence = Packing::Document;

/// The sequences in order; tokens between them are padding.
std::vector<Sequence> sequences_of(const MicroBatch& batch);
/// Sums of each sequence's tokens, as float64 [S]. \param values_N  on any device
at::Tensor sum_by_sequence(const MicroBatch& batch, const at::Tensor& values_N);
/// Gives each token the value of its sequence, and 0 to padding: float32 [N]. \param values_S  on any device
at::Tensor spread_over_sequences(const MicroBatch& batch, const at::Tensor& values_S);

}  // namespace fsdp
