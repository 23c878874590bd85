#pragma once
// The memory of a training job that does not run: its own trainer and engine, on meta tensors.
#include <optional>
#include <string>

#include "lib/base/work.hpp"
#include "lib/compute/device/gpus.hpp"
#include "lib/engine/fsdp/mesh.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/planning/memory/profile.hpp"
#include "lib/ranks/fake_group.hpp"
#include "lib/training/data/data_loader.hpp"
#include "lib/training/step/train_options.hpp"

namespace fsdp {

struct MemoryRequest {
  ModelConfig config;
  TrainOptions options;             ///< of the job; sharding and batch sizes are what counts
  std::int64_t tokens_per_row = 0;  ///< inputs of a sequence
  DocumentLengths documents;        ///< that share a row of --pack; none: a row is one sequence
  FakeJob job;
  std::optional<GpuSpec> gpu;                             ///< none: ranks on CPUs
  std::optional<std::int64_t> context_bytes, nccl_bytes;  ///< of the GPU, instead of the usual ones
  std::int64_t margin_bytes = 0;                          ///< of the GPU that is to stay free
  int threads = 1;                                        ///< of a rank, CPUs
  bool has_child = false;                                 ///< that of Child-Tuning's D: a restart's is chosen
};

/// What a rank needs of its host.
struct HostMemory {
  std::int64_t program_bytes = 0;  ///< libraries and their tables
  std::int64_t states_bytes = 0;   ///< offloaded master weights, gradients, moments; on CPUs all tensors at their peak
  std::int64_t load_bytes = 0;     ///< besides: the largest piece of weights being read
  std::int64_t save_bytes = 0;     ///< besides: the copy that a checkpoint is written from while training goes on
  std::int64_t disk_bytes = 0;     ///< of --offload-optimizer nvme, on a disk of the node
  std::int64_t disk_save_bytes = 0;  ///< besides, while a checkpoint is written
  std::int64_t peak_bytes() const { return program_bytes + states_bytes + std::max(load_bytes, save_bytes); }
};

struct MemoryPrediction {
  MemoryProfile profile;
  CachingAllocatorStats allocator;  ///< with a GPU
  DeviceOverheads overheads;        ///< with a GPU
  HostMemory host;                  ///< per rank
  CommCounts comm;                  ///< one optimizer step
  double flops = 0;                 ///< of matrix products, one optimizer step, this rank; recomputation included
  double useful_flops = 0;          ///< without it
  std::int64_t rows_per_step = 0;   ///< all ranks
  int accumulation_steps = 1;
  int communicators = 0;                    ///< mesh axes with more than one rank
  StepWork work;                            ///< of the last step
  double tokens_per_step = 0;               ///< targets, all ranks
  std::int64_t recorded_micro_batches = 0;  ///< of those that were simulated; the allocator's figures count their pool

  /// What must fit: on CPUs tensor bytes; on a GPU segments, context and NCCL.
  std::int64_t total_bytes() const;
  /// The part of it that a run can measure of its allocator: segments on a GPU, tensor bytes on CPUs.
  std::int64_t allocator_peak_bytes() const;
  /// Bytes that the allocator holds beyond what tensors asked for, at its peak.
  std::int64_t rounding_bytes() const;
  bool fits() const { return allocator.num_alloc_retries == 0; }
  bool on_gpu = false;
};

/// Documents that memory is predicted for, in every row of --pack: those of the file's row that takes most of it, or,
/// where the file is not known, of 512 tokens. \param request  all but documents
DocumentLengths documents_to_predict(const MemoryRequest& request, const TokenLoader* packed);

/// \throws UsageError for options that contradict each other
MemoryPrediction predict_memory(const MemoryRequest& request);

/// Memory of a GPU that the caching allocator can have. Negative when there is none.
std::int64_t allocator_capacity(const GpuSpec& gpu, const DeviceOverheads& overheads);

/// Bytes of a rank's program before its first tensor.
std::int64_t program_bytes(bool gpu);

}  // namespace fsdp
