#pragma once
// Which micro-batches run as CUDA graphs.
#include <cstdint>

#include "lib/compute/ops/ops.hpp"
#include "lib/engine/fsdp/mesh.hpp"
#include "lib/engine/runtime/sharding_options.hpp"
#include "lib/models/layers/decoder.hpp"

namespace fsdp {

/// The most tokens of a micro-batch that is recorded; 0: none are. From sizes alone, so that every run of a job decides
/// alike. CudaGraphs::automatic takes one GPU by itself, and micro-batches whose kernels are not much longer than the
/// host's time for their launches: a block's forward and backward are some 36 launches of 5 us, and 6 multiply-adds'
/// worth of work per token and parameter. At 150 TFLOP/s in 16 bits (an eighth of it in float32) twice that time is
/// 2^33 tokens x parameters of a block (2^30).
/// \throws UsageError naming what is in the way of CudaGraphs::on
std::int64_t recorded_tokens(const ShardingOptions& options, const Decoder& decoder, const Mesh& mesh, const Ops& ops);

}  // namespace fsdp
