#pragma once
// Fully sharded data parallel training of a list of layers: runs the schedule, owns shards and gradients.
//
// The engine knows no model and no file. It is built from layers, parameter layouts and units; the caller fills the
// float32 master weights, calls sync_parameters(), and then runs micro-batches and its optimizer on shards.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lib/compute/device/observer.hpp"
#include "lib/compute/tensor/layer.hpp"
#include "lib/engine/collectives/tensor_collectives.hpp"
#include "lib/engine/fsdp/mesh.hpp"
#include "lib/engine/fsdp/policy.hpp"
#include "lib/engine/fsdp/schedule.hpp"
#include "lib/engine/fsdp/shard_layout.hpp"
#include "lib/engine/fsdp/unit_grads.hpp"
#include "lib/engine/fsdp/unit_params.hpp"
#include "lib/engine/offload/tensor_store.hpp"

namespace fsdp {

/// The model and where it runs. Everything referred to must outlive the engine.
struct EngineInput {
  std::vector<Layer*> layers;
  LossLayer* loss = nullptr;
  std::vector<ParamLayout> parameters;  ///< by index in the model's table
  std::vector<std::vector<int>> units;  ///< parameter indices; see make_units()
  const Ops* ops = nullptr;
  Mesh* mesh = nullptr;
  TensorCollectives* shard_collectives = nullptr;      ///< along mesh->shard
  TensorCollectives* replicate_collectives = nullptr;  ///< along mesh->replicate
  TensorStore* store = nullptr;                        ///< for master weights and gradients; null: they stay in memory
  bool allow_peer_memory = true;                       ///< false: collectives even between ranks that share memory
  int accumulation_steps = 1;                          ///< micro-batches per optimizer step
};

/// What a forward pass ends in instead of the loss layer: its gathered parameters and the last layer's output.
using HeadBody = std::function<LossSum(LayerParams params, const at::Tensor& x_ND)>;

/// Position of a micro-batch in its optimizer step.
struct MicroBatchPlace {
  bool first = true;
  bool last = true;
};

/// Micro-batches whose work the device was given as a whole (EnginePolicy::graph_max_tokens).
struct RecordingCounts {
  std::int64_t recorded = 0;  ///< shapes and places
  std::int64_t replayed = 0;  ///< micro-batches
  std::int64_t refused = 0;   ///< shapes and places that the device could not record: they run as they come
  std::string problem;        ///< why, of the last one
  std::string given_up;       ///< what ran out of memory beside recordings: since then there are none
};

/// Memory ran out in the middle of a micro-batch that adds to gradients, beside recordings. There is room now, but no
/// gradients of the step: its first micro-batch, which sets them, is to come again.
class GradientsLost : public std::runtime_error {
 public:
  GradientsLost() : std::runtime_error("out of memory: the step must begin again with its first micro-batch") {}
};

class Engine {
 public:
  Engine(const EngineInput& input, const EnginePolicy& policy);
  ~Engine();

  std::size_t num_parameters() const { return input_.parameters.size(); }
  const ParamLayout& layout(std::size_t param) const { return input_.parameters[param]; }
  ShardRange range(std::size_t param) const;
  /// [padded_rows, ...], of the policy's master dtype: this rank's rows, zero in the padding. On the host with
  /// cpu_offload. Of a frozen parameter, the rows that are gathered, in the parameters' dtype and place. With a store
  /// only while with_rows() or update_rows() runs.
  at::Tensor master_weight(std::size_t param) { return stored_master_weight(param).get(); }
  const StoredTensor& stored_master_weight(std::size_t param);
  /// float32 gradient of the same rows, complete after the last micro-batch of a step. Undefined for a frozen one, and
  /// with a store for those that are not there while update_rows() or read_gradients() runs.
  at::Tensor gradient(std::size_t param);
  /// Runs body while a parameter's master weights, and its states in the same store, are in memory.
  void with_rows(std::size_t param, Access access, const std::function<void()>& body);
  /// Runs body for all parameters, some at a time: those whose master weights, gradients and states are in memory then.
  /// Without a store, for all at once. The order and the parts are the same on all ranks.
  void update_rows(const std::function<void(const std::vector<std::size_t>& params)>& body);
  /// The same with gradients alone.
  void read_gradients(const std::function<void(const std::vector<std::size_t>& params)>& body);
  /// Runs body for all parameters, those of the units that a forward begins with first, and publishes what it wrote.
  /// The gathers of these units start behind their own part, while the device updates the others; the next forward
  /// waits for them. Without a store. Collective. \param body  also writes published_rows()
  void update_units(const std::function<void(const std::vector<std::size_t>& params)>& body);
  /// Makes changed master weights visible to the next gather of every rank. Collective.
  void sync_parameters();
  /// The rows that gathers read, where they are not master_weight(param) itself; undefined where they are.
  at::Tensor published_rows(std::size_t param);

  /// Forward and backward of grad_scale * (sum of token losses). Gradients of the micro-batches of a step add up.
  /// Where memory runs out beside recordings, here or in an evaluation, they are given up for good, and it runs again.
  /// \throws GradientsLost, c10::OutOfMemoryError
  LossSum forward_backward(const MicroBatch& batch, MicroBatchPlace place, double grad_scale);
  /// Forward only.
  LossSum evaluate(const MicroBatch& batch);
  /// Forward only, with `head` in place of the loss layer; it is called once, and not on a rank without rows.
  LossSum evaluate(const MicroBatch& batch, const HeadBody& head);
  /// Runs body with the gathered parameters of a layer (index layers.size(): the loss). Collective. For generation.
  void with_layer_parameters(std::size_t layer, const std::function<void(LayerParams)>& body);

  /// Global L2 norm of the gradients, summed in float64; inf or NaN when any element is. Collective.
  double gradient_norm();
  /// L2 norms of each parameter's gradient, likewise; 0 of a frozen one. Collective.
  std::vector<double> gradient_norms();

  /// Gradients, rows and the ranks' sums are all on the device, which then decides a step by itself.
  bool decides_on_device() const;
  /// By the gradients and by the loss of this rank's micro-batches (StepDecider::decide). Nothing waits. Collective.
  at::Tensor decide_step(const LossSum& loss, double loss_scale, double clip_norm);

  const CommCounts& counts() const { return counts_; }
  RecordingCounts recording_counts() const;
  EngineObservers& observers() { return observers_; }
  /// True when this engine's shard axis works in shared memory.
  bool uses_peer_memory() const { return peer_memory_; }

 private:
  struct Unit;
  struct Run;
  class GraphCache;
  /// What of a micro-batch under way another run of it does not undo.
  struct Progress {
    bool changed = false;  ///< gradients, or whatever a head does
    bool crossed = false;  ///< other ranks have a part in it
  };
  /// What must run again once there is room for it, where `changed`.
  enum class Redo : std::uint8_t { micro_batch, step, nothing };

  Unit& unit_of(int param);
  std::vector<at::Tensor> full_parameters(const std::vector<int>& params);
  void build_units();
  void add_parameter(Unit& unit, std::size_t place);
  StoredTensor store_master_weight(Unit& unit, std::size_t place, at::IntArrayRef sizes);
  std::vector<StoredTensor> store_gradients(Unit& unit);
  void publish(Unit& unit, std::size_t place);
  std::optional<StoreHold> hold_gradients(const Unit& unit);
  void measure_stored(Unit& unit);
  double sum_squares(std::size_t param);
  std::vector<GradPart> gradient_parts();
  bool accumulates(const Run& run) const;
  void build_gradients();
  int first_backward() const;
  LossSum with_room(Redo redo, const std::function<LossSum()>& micro_batch);
  LossSum run(const std::vector<Action>& actions, Run& run);
  void execute(const Action& action, Run& run);
  void run_forward(std::size_t index, bool again, Run& run);
  void run_loss(Run& run);
  void run_backward(std::size_t index, Run& run);
  std::string describe(const Action& action) const;
  void unshard(Unit& unit);
  void finish_reduce(Unit& unit, const Run& run);
  void start_replicas(Unit& unit);
  void drain_reduction();
  void finish_replicas(Unit& unit);
  std::vector<GradSlot*> grad_slots(const std::vector<int>& params);
  std::vector<Action> plan(bool training, MicroBatchPlace place);
  std::vector<int> first_gathers();
  void release_coming();
  void publish(Unit& unit);

  EngineInput input_;
  EnginePolicy policy_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<int> unit_index_;  ///< by parameter
  std::vector<int> slot_index_;  ///< by parameter: place within its unit
  std::vector<int> layer_unit_;
  std::vector<bool> checkpointed_;
  int loss_unit_ = 0;
  int first_backward_ = 0;  ///< layers below it only run forward: nothing there is trained
  std::vector<std::unique_ptr<Transfer>> host_transfers_;  ///< sums over replicas on their way to the host
  Unit* draining_ = nullptr;        ///< whose gradients are on their way between replicas, or to the host
  std::vector<int> first_gathers_;  ///< units, in the order of a forward; none where gathering is no transfer
  bool peer_memory_ = false;
  bool rows_changed_ = false;         ///< in the store, by with_rows()
  std::vector<double> grad_squares_;  ///< by parameter, with a store: taken while its gradient is at hand
  CommCounts counts_;
  Progress progress_;
  std::unique_ptr<GraphCache> graph_cache_;  ///< null: every micro-batch runs as it comes
  EngineObservers observers_;
};

}  // namespace fsdp
