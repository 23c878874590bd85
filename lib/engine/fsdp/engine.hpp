#pragma once
// Fully sharded data parallel training of a list of layers: runs the schedule, owns shards and gradients.
//
// The engine knows no model and no file. It is built from layers, parameter layouts and units; the caller fills the
// float32 master weights, calls sync_parameters(), and then runs micro-batches and its optimizer on shards.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lib/compute/device/observer.hpp"
#include "lib/compute/tensor/layer.hpp"
#include "lib/engine/collectives/tensor_collectives.hpp"
#include "lib/engine/fsdp/guards.hpp"
#include "lib/engine/fsdp/host_inputs.hpp"
#include "lib/engine/fsdp/unit_grads.hpp"
#include "lib/engine/fsdp/unit_params.hpp"
#include "lib/engine/offload/tensor_store.hpp"
#include "lib/engine/sharding/comm_counts.hpp"
#include "lib/engine/sharding/mesh.hpp"
#include "lib/engine/sharding/parameter_groups.hpp"
#include "lib/engine/sharding/policy.hpp"
#include "lib/engine/sharding/schedule.hpp"
#include "lib/engine/sharding/shard_layout.hpp"

namespace fsdp {

/// The micro-batches of a step, and the optimizer's use of their gradients.
struct StepShape {
  StepShape(int micro_batches_of_step = 1, bool takes_bf16_gradients = false)
      : micro_batches(micro_batches_of_step), takes_bf16(takes_bf16_gradients) {}
  int micro_batches;
  /// The update also reads bf16 (takes_bf16_gradients()). On a device, gradients of a step of one micro-batch then
  /// keep the dtype in which they travel, as FSDP2's do: 2 bytes to store and 4 to read instead of 4 and 8.
  bool takes_bf16;
  std::vector<std::string> groups = {};  ///< DecoderOptions::groups
};

/// The model and where it runs. Everything referred to must outlive the engine.
struct EngineInput {
  std::vector<Layer*> layers;
  LossLayer* loss = nullptr;
  std::vector<ParamLayout> parameters;  ///< by index in the model's table
  std::vector<std::vector<int>> units;  ///< parameter indices; see make_units()
  const Ops* ops = nullptr;
  const Mesh* mesh = nullptr;     ///< connected
  TensorStore* store = nullptr;   ///< for master weights and gradients; null: they stay in memory
  bool allow_peer_memory = true;  ///< false: collectives even between ranks that share memory
  StepShape step = {};
};

/// Position of a micro-batch in its optimizer step.
struct MicroBatchPosition {
  bool first = true;
  bool last = true;
};

/// Counts of CUDA graphs. A graph holds the work of one micro-batch, see EnginePolicy::graph_max_tokens.
struct RecordingCounts {
  std::int64_t recorded = 0;  ///< graphs captured, one per shape and position in the step
  std::int64_t replayed = 0;  ///< micro-batches that ran as a graph
  std::int64_t refused = 0;   ///< captures that failed; these micro-batches run without a graph
  std::string problem;        ///< reason of the last failed capture
};

namespace detail {
class ReplicaSums;
}

class Engine {
 public:
  Engine(const EngineInput& input, const EnginePolicy& policy);
  ~Engine();

  std::size_t num_parameters() const { return input_.parameters.size(); }
  const ParamLayout& layout(std::size_t param) const { return input_.parameters[param]; }
  ShardRange range(std::size_t param) const;
  /// This rank's shard of the master weights, [padded_rows, ...] in master_dtype, zero in the padding; on the host with
  /// cpu_offload. For a frozen parameter: the shard that is gathered, in param_dtype and on its device. With a store
  /// the shard is available only while shard() or parameter_groups() holds it.
  at::Tensor master_weight(std::size_t param) { return stored_master_weight(param).get(); }
  const StoredTensor& stored_master_weight(std::size_t param);
  /// float32 gradient of this shard, complete after the last micro-batch of a step. Undefined for a frozen parameter
  /// and, with a store, unless parameter_groups() has it in memory.
  at::Tensor gradient(std::size_t param);
  /// Holds the master weights of a parameter and its optimizer states in memory.
  HeldShard shard(std::size_t param, Access access);
  /// All parameters, in groups whose gradients, and for an update master weights and optimizer states, are in memory
  /// while the loop is at the group; without a store, one group of all parameters. Groups and their order are equal on
  /// all ranks. UnitPass::update_and_cast, which is collective and without a store, begins with the units that the next
  /// forward needs first: the all-gather of each starts as soon as the unit is updated, while the device updates the
  /// other units, and the next forward waits for it.
  ParameterGroups parameter_groups(UnitPass pass);
  /// Makes changed master weights visible to the next gather of every rank. Collective.
  void sync_parameters();
  /// The shard in param_dtype that all-gathers read. Undefined where all-gathers read master_weight(param) itself.
  at::Tensor all_gather_input(std::size_t param);

  /// The sums that forward_backward() and evaluate() return, all 0: those of the loss and those that layers name.
  StepSums no_sums() const { return StepSums(sum_names_); }
  /// Forward and backward of grad_scale * (sum of weighted losses). Gradients accumulate over the micro-batches of a
  /// step.
  StepSums forward_backward(const MicroBatch& batch, MicroBatchPosition place, double grad_scale);
  /// Forward only.
  StepSums evaluate(const MicroBatch& batch);
  /// Forward only, up to the loss layer. One result at a time. Collective.
  ForwardEnd forward(const MicroBatch& batch);
  /// Gathers the parameters of one layer (index layers.size(): the loss layer); generation uses it. Collective.
  GatheredLayer gathered(std::size_t layer);

  /// Global L2 norm of the gradients, summed in float64; inf or NaN when any element is. Collective.
  double gradient_norm();
  /// Global L2 norm of each parameter's gradient, summed in float64; 0 for a frozen parameter. Collective.
  std::vector<double> gradient_norms();

  /// True when gradients, master weights and reductions are all on the device, so that the device can check and clip a
  /// step without the host; see decide_step().
  bool decides_on_device() const;
  /// Computes the decision of Ops::decide() from the gradients and from the sums of this rank's micro-batches.
  /// Does not wait for the device. Collective. \param before  as StepToDecide::before
  at::Tensor decide_step(StepSums sums, double loss_scale, double clip_norm, const at::Tensor& before);

  const CommCounts& counts() const { return counts_; }
  RecordingCounts recording_counts() const;
  EngineObservers& observers() { return observers_; }
  /// True when the ranks of the shard axis exchange parameters and gradients through shared memory.
  bool uses_peer_memory() const;

 private:
  using Unit = detail::Unit;
  struct Run;
  class GraphCache;

  int first_backward() const;
  std::vector<int> first_gathers();
  std::vector<Action> plan(bool training, MicroBatchPosition place);
  StepSums run(const std::vector<Action>& actions, Run& run);
  void execute(const Action& action, Run& run);
  void begin(Run& run);
  void run_forward(std::size_t index, bool again, Run& run);
  void run_loss(Run& run);
  void run_backward(std::size_t index, Run& run);
  void start_reduce(Unit& unit, const Run& run);
  void finish_reduce(Unit& unit, const Run& run);
  std::string describe(const Action& action) const;
  std::vector<std::size_t> all_parameters() const;

  EngineInput input_;
  EnginePolicy policy_;
  std::unique_ptr<detail::ShardStorage> storage_;
  std::unique_ptr<detail::Units> units_;
  std::vector<std::string> sum_names_;  ///< of the layers' own sums
  CommCounts counts_;
  std::unique_ptr<detail::ReplicaSums> replica_sums_;
  std::vector<int> layer_unit_;
  std::vector<bool> checkpointed_;
  int loss_unit_ = 0;
  int first_backward_ = 0;                   ///< layers below it have nothing to train and only run forward
  std::vector<int> first_gathers_;           ///< units that UnitPass::update_and_cast gathers ahead, in forward order
  int unfinished_ = 0;                       ///< changes of shards that HeldShard::finish() has not ended
  std::unique_ptr<GraphCache> graph_cache_;  ///< null: no CUDA graphs
  std::unique_ptr<HostInputs> host_inputs_;  ///< null: Run::inputs keeps inputs of recomputed blocks
  EngineObservers observers_;
};

}  // namespace fsdp
