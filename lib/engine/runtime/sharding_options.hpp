#pragma once
// Options of ModelRuntime: sharding, precision, freezing, adapters, quantisation, activation checkpointing, offload.
#include <c10/core/ScalarType.h>

#include <optional>

#include "lib/engine/fsdp/policy.hpp"
#include "lib/engine/fsdp/wrap.hpp"
#include "lib/engine/offload/offload.hpp"
#include "lib/models/config/lora.hpp"
#include "lib/models/config/quantize_config.hpp"
#include "lib/models/config/trainable.hpp"

namespace fsdp {

/// How ranks gather, keep and reduce the tensors of a model, and in which types.
struct ShardingOptions {
  FreezeOptions freeze;
  LoraConfig lora;
  QuantizeConfig quantize;                       ///< of frozen matrices
  std::optional<c10::ScalarType> compute_dtype;  ///< as DecoderOptions'
  Sharding sharding = Sharding::full_shard;
  int shard_group_size = 0;  ///< ranks per shard group of the hybrid strategies; 0: the ranks of a node
  WrapPolicy wrap;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  std::optional<bool> forward_prefetch;  ///< none: on GPUs
  bool limit_all_gathers = true;
  CudaGraphs cuda_graphs = CudaGraphs::automatic;      ///< which micro-batches run as CUDA graphs
  c10::ScalarType precision = c10::ScalarType::Float;  ///< of the three below where they are not given
  std::optional<c10::ScalarType> param_dtype, reduce_dtype, buffer_dtype, master_dtype;
  int checkpoint_every = 0;          ///< recompute every n-th block's activations in the backward; 0: none
  bool allow_emulated_bf16 = false;  ///< on a GPU without bf16 units
  bool wide_weights = false;         ///< as EnginePolicy's
  bool cpu_offload = false;
  OffloadConfig offload_optimizer;
  bool meta_init = false;  ///< accepted for the tutorials' sake: initialisation is always sharded
  bool reduce_every_micro_batch = false;
  bool host_staged = false;  ///< MPI moves CUDA tensors through host memory; for tests
};

}  // namespace fsdp
