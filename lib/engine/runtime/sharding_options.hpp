#pragma once
// Options of ModelRuntime: sharding, precision, freezing, adapters, quantisation, activation checkpointing, offload.
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lib/engine/sharding/policy.hpp"
#include "lib/engine/sharding/wrap.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/models/config/quantize_config.hpp"
#include "lib/models/config/trainable.hpp"

namespace fsdp {

/// --offload-optimizer: where master weights and optimizer states are kept between steps.
struct OffloadConfig {
  enum class Place {
    device,
    cpu,  ///< in host memory; the optimizer also runs on the host
    nvme  ///< on a local disk of each node; only a part at a time is in host memory
  };
  Place place = Place::device;
  std::string directory;         ///< directory on the disk, for nvme
  std::int64_t group_bytes = 0;  ///< bytes of states that are transferred together, for nvme; 0: default

  bool on_disk() const { return place == Place::nvme; }
};

inline constexpr const char* kOffloadChoices = "none, cpu, nvme:DIR (a directory on a disk of each node)";
/// Parses none, cpu or nvme:DIR. \throws RequestError naming these choices
OffloadConfig parse_offload(std::string_view text, std::string_view option = "offload-optimizer");
/// Formats the config as parse_offload() accepts it.
std::string to_string(const OffloadConfig& offload);

/// How ranks gather, keep and reduce the tensors of a model, and in which types.
struct ShardingOptions : ShardingPolicy {
  FreezeOptions freeze;
  LoraConfig lora;
  QuantizeConfig quantize;                       ///< of frozen matrices
  std::optional<c10::ScalarType> compute_dtype;  ///< as DecoderOptions'
  int shard_group_size = 0;  ///< ranks per shard group of the hybrid strategies; 0: the ranks of a node
  WrapPolicy wrap;
  std::optional<bool> forward_prefetch;                ///< none: on GPUs
  CudaGraphs cuda_graphs = CudaGraphs::automatic;      ///< which micro-batches run as CUDA graphs
  c10::ScalarType precision = c10::ScalarType::Float;  ///< of the three below where they are not given
  std::optional<c10::ScalarType> param_dtype, reduce_dtype, buffer_dtype, master_dtype;
  bool allow_emulated_bf16 = false;  ///< on a GPU without bf16 units
  bool tf32 = false;                 ///< multiply float32 with ten bits of mantissa
  bool cpu_offload = false;
  OffloadConfig offload_optimizer;
  bool offload_parameters = false;  ///< on the disk of offload_optimizer, too
  bool meta_init = false;           ///< accepted for the tutorials' sake: initialisation is always sharded
  bool host_staged = false;         ///< MPI moves CUDA tensors through host memory; for tests
};

}  // namespace fsdp
