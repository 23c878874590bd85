#pragma once
// A decoder on its mesh: layers, collectives and engine wired together for one job.
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/messages/log.hpp"
#include "lib/engine/collectives/device_backend.hpp"
#include "lib/engine/collectives/requested_device.hpp"
#include "lib/engine/fsdp/engine.hpp"
#include "lib/engine/offload/tensor_store.hpp"
#include "lib/engine/runtime/sharding_options.hpp"
#include "lib/engine/sharding/wrap.hpp"
#include "lib/models/layers/decoder.hpp"

namespace fsdp {

/// The device of a rank and how it was chosen.
struct DeviceChoice {
  at::Device device = at::kCPU;
  std::shared_ptr<DeviceBackend> backend;  ///< null on the CPU
  std::shared_ptr<const Ops> ops;          ///< null: the back end's, or the CPU's
  std::string description;                 ///< for the first line of the log
  std::string unused_gpu;                  ///< why the node's GPU cannot be used; empty: it is, or there is none
  bool has_values = true;                  ///< false: tensors are counted, nothing is computed or kept
};

/// --device auto: a usable GPU if there is one. Products in float32 are exact to float32, whatever the environment says
/// about TF32. Collective over all ranks.
/// \param node  the ranks of this host
/// \param driver  a file that is there where the node has a GPU and its driver
/// \throws RequestError on every rank when some ranks have a usable GPU and others have none, when --device cuda names
///         one that is unusable, or with --device auto when there are several GPUs and not one for each rank
DeviceChoice choose_device(RequestedDevice device, ProcessGroup& world, ProcessGroup& node,
                           const std::filesystem::path& driver = "/dev/nvidiactl");

/// Multiplies float32 with ten bits of mantissa from now on. \throws RequestError if the device cannot
void allow_tf32(const DeviceChoice& device);

/// One line of rank 0 where any rank's GPU stays unused: a job that meant to have GPUs would take days on CPUs.
void warn_of_unused_gpus(ProcessGroup& world, const DeviceChoice& device, const Logger& log);

/// The mesh that a job with these options has. Collective. \throws RequestError as the other make_mesh()
Mesh make_mesh(ProcessGroup& world, const ShardingOptions& options);

/// The engine's part of the options, with the dtypes that --precision sets.
EnginePolicy make_policy(const ShardingOptions& options);

/// Threads of this rank, by threads_on_node(). Returns the number set. Collective over `node`, the ranks of this host.
int set_threads(ProcessGroup& node, const Logger& log);

/// The frozen base weights of adapters. They are read from their directory and not saved with checkpoints.
struct BaseWeights {
  std::string directory;
  std::string hash;  ///< of their values as they are stored there, whatever the number of ranks
};

/// Owns everything between a model configuration and running micro-batches.
class ModelRuntime {
 public:
  /// Collective over `world`, which must outlive this object.
  ModelRuntime(ProcessGroup& world, const ModelConfig& config, const ShardingOptions& options,
               const DeviceChoice& device, const StepShape& step);
  ModelRuntime(const ModelRuntime&) = delete;
  ModelRuntime& operator=(const ModelRuntime&) = delete;

  const Decoder& decoder() const { return decoder_; }
  const Mesh& mesh() const { return mesh_; }
  const DataRanks& data_ranks() const { return mesh_.data; }
  bool has_adapters() const { return decoder_.options.lora.enabled(); }
  const BaseWeights& base() const { return base_; }
  void set_base(BaseWeights base) { base_ = std::move(base); }
  Engine& engine() { return *engine_; }
  /// The store of master weights, gradients and optimizer states; null: they are in memory.
  TensorStore* store() { return store_.get(); }
  const EnginePolicy& policy() const { return policy_; }
  /// Indexed as Decoder::parameters.
  const std::vector<bool>& trainable() const { return trainable_; }
  std::size_t num_units() const { return num_units_; }
  at::Device device() const { return device_.device; }
  /// Null on the CPU.
  DeviceBackend* backend() const { return device_.backend.get(); }
  const Ops& ops() const { return *device_.ops; }
  /// Waits for the device; where a rank died this is where it shows. Before Ops::fetch() and other reads of the device.
  void synchronize() const {
    if (device_.backend != nullptr) device_.backend->synchronize(device_.device.index());
  }
  ProcessGroup& world() { return world_; }
  /// Collectives over a group of the job's ranks, as those of the mesh. Collective over `group`, which must outlive the
  /// result. \throws RuntimeFailure as DeviceBackend::make_collectives()
  std::shared_ptr<TensorCollectives> connect(ProcessGroup& group) const;
  /// Collectives along the shard axis.
  TensorCollectives& shard_collectives() const { return *mesh_.shard.collectives; }
  /// True on the ranks whose shards are saved: one copy of each.
  bool saves_shards() const { return mesh_.replicate.rank() == 0; }

  /// False: tensors are counted, nothing is computed or kept.
  bool has_values() const { return device_.has_values; }

 private:
  ProcessGroup& world_;
  DeviceChoice device_;
  EnginePolicy policy_;
  Decoder decoder_;
  std::vector<bool> trainable_;
  BaseWeights base_;
  Mesh mesh_;
  bool is_host_staged_ = false;
  std::unique_ptr<TensorStore> store_;
  std::unique_ptr<Engine> engine_;
  std::size_t num_units_ = 0;
};

}  // namespace fsdp
