#pragma once
// Predicts the memory of a training job without running it: the real trainer and engine process meta tensors.
#include <optional>
#include <string>

#include "lib/base/types/work.hpp"
#include "lib/compute/device/gpus.hpp"
#include "lib/engine/sharding/comm_counts.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/planning/memory/profile.hpp"
#include "lib/ranks/fake_group.hpp"
#include "lib/training/data/training_data.hpp"
#include "lib/training/step/train_options.hpp"

namespace fsdp {

struct MemoryRequest {
  ModelConfig config;
  TrainOptions options;             ///< the job's options; only sharding and batch sizes matter here
  std::int64_t tokens_per_row = 0;  ///< input tokens of a row
  /// lengths of the documents that share each row of a micro-batch of --pack; empty: a row is one sequence
  std::vector<DocumentLengths> documents;
  FakeJob job;
  std::optional<GpuSpec> gpu;  ///< none: the ranks compute on CPUs
  /// memory of the CUDA context and of NCCL, instead of the usual values
  std::optional<std::int64_t> context_bytes, nccl_bytes;
  std::int64_t margin_bytes = 0;  ///< GPU memory that has to stay free
  int threads = 1;                ///< threads per rank on CPUs
  bool has_child = false;  ///< the mask of Child-Tuning-D exists, as after a restart; the step is predicted with it
};

/// Host memory and disk space that one rank needs.
struct HostMemory {
  std::int64_t program_bytes = 0;  ///< libraries and their tables
  std::int64_t states_bytes = 0;   ///< offloaded master weights, gradients, moments; on CPUs all tensors at their peak
  std::int64_t load_bytes = 0;     ///< in addition while loading: the largest piece of weights being read
  /// in addition while saving: the copy that a checkpoint is written from while training goes on
  std::int64_t save_bytes = 0;
  std::int64_t disk_bytes = 0;       ///< of --offload-optimizer nvme, on a local disk of the node
  std::int64_t disk_save_bytes = 0;  ///< in addition while a checkpoint is written
  std::int64_t peak_bytes() const { return program_bytes + states_bytes + std::max(load_bytes, save_bytes); }
};

struct MemoryPrediction {
  MemoryProfile profile;
  CachingAllocatorStats allocator;  ///< only with a GPU
  DeviceOverheads overheads;        ///< only with a GPU
  HostMemory host;                  ///< per rank
  CommCounts comm;                  ///< of one optimizer step
  double flops = 0;                 ///< of this rank's matrix products in one optimizer step, recomputation included
  double useful_flops = 0;          ///< of this rank's matrix products in one optimizer step, without recomputation
  std::int64_t rows_per_step = 0;   ///< over all ranks
  int accumulation_steps = 1;
  int communicators = 0;       ///< mesh axes with more than one rank
  StepWork work;               ///< work of the last step
  double tokens_per_step = 0;  ///< targets, over all ranks
  /// simulated micro-batches that were recorded (CUDA graphs); the allocator's numbers include their private pool
  std::int64_t recorded_micro_batches = 0;

  /// Bytes that must fit into memory: on CPUs tensors; on a GPU the allocator's segments, the CUDA context and NCCL.
  std::int64_t total_bytes() const;
  /// The part of total_bytes() that a run can measure through its allocator: segments on a GPU, tensors on CPUs.
  std::int64_t allocator_peak_bytes() const;
  /// Bytes that the allocator holds at its peak beyond those that tensors requested.
  std::int64_t rounding_bytes() const;
  bool fits() const { return allocator.num_alloc_retries == 0; }
  bool on_gpu = false;
};

/// Chooses the documents that the rows of a micro-batch of --pack are predicted with: those of the micro-batch that
/// needs the most memory or, if the file is not known, documents of 512 tokens. \param request  everything but its
/// documents is read \param places   in the order of the samples; none: those of the first epoch, or of the run if it
/// is shorter
std::vector<DocumentLengths> documents_to_predict(const MemoryRequest& request, const TrainingData* packed,
                                                  std::optional<StepSlice> places = {});

/// \throws RequestError for options that contradict each other
MemoryPrediction predict_memory(const MemoryRequest& request);

/// \return bytes of GPU memory that are left for the caching allocator; negative when the overheads alone do not fit
std::int64_t allocator_capacity(const GpuSpec& gpu, const DeviceOverheads& overheads);

/// \return host memory of a rank's process before its first tensor, in bytes
std::int64_t program_bytes(bool gpu);

}  // namespace fsdp
