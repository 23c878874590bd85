#pragma once
// What an engine keeps of a unit, and of a micro-batch under way.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "lib/compute/ops/work_recorder.hpp"
#include "lib/engine/fsdp/engine.hpp"

namespace fsdp {

/// One micro-batch under way.
struct Engine::Run {
  const MicroBatch& batch;
  MicroBatchPlace place = {};
  GradScale grad_scale = 0.0;
  bool training = false;
  at::Tensor x_ND = {};                 ///< activation between layers
  at::Tensor grad_ND = {};              ///< gradient between layers
  std::vector<at::Tensor> inputs = {};  ///< of checkpointed layers
  std::vector<std::unique_ptr<LayerState>> states = {};
  LossSum loss = {};
  const HeadBody* head = nullptr;  ///< instead of the loss layer
};

struct Engine::Unit {
  int index = 0;
  std::string name;
  std::vector<int> params;
  std::vector<ParamLayout> layouts;
  std::unique_ptr<UnitParams> gathered;
  std::unique_ptr<UnitGrads> grads;  ///< null: nothing in it is trained
  std::vector<int> trained;          ///< by place among params: its place among the gradients; -1: frozen
  std::vector<ParamLayout> grad_layouts;
  std::vector<StoredTensor> master_weights;
  /// Where a store has this rank's part: groups of master weights and states, as small as parameters allow, with their
  /// places among params; and the gradients, of all or none.
  struct StepGroup {
    std::size_t group = 0;
    std::vector<std::size_t> places = {};
    std::int64_t elements = 0;
  };
  std::vector<StepGroup> step_groups;
  std::optional<std::size_t> grad_group;
  std::optional<StoreHold> held;           ///< its gradients, while they are reduced
  at::ScalarType wire_dtype = at::kFloat;  ///< of its gradients between replicas
  std::unique_ptr<Work> replica_work;      ///< their sum under way,
  std::vector<at::Tensor> replica_sums;    ///< of these
  bool is_gathered = false;
  bool is_coming = false;         ///< its gather was started by update_units()
  std::int64_t gather_bytes = 0;  ///< what this rank receives in one gather
  std::int64_t reduce_bytes = 0;
  std::int64_t shard_elements = 0;  ///< of gradients, in this rank's rows
};

class Engine::GraphCache {
 public:
  explicit GraphCache(Engine& engine) : engine_(engine) {}

  /// \return none: it is to run as it comes
  std::optional<LossSum> run(const MicroBatch& batch, MicroBatchPlace place, double grad_scale);
  /// Runs it, and again where memory ran out that recordings keep. \throws GradientsLost, c10::OutOfMemoryError
  LossSum with_room(Redo redo, const std::function<LossSum()>& micro_batch);
  const RecordingCounts& counts() const { return counts_; }

 private:
  /// Rows, tokens of a row, whether it is the first and the last of its step, and whether there is dropout.
  using Key = std::tuple<std::int64_t, std::int64_t, bool, bool, bool>;
  /// Where recordings of one shape read.
  struct Inputs {
    MicroBatch batch;
    at::Tensor scale;  ///< float32 [1]
  };
  struct Graph {
    std::int64_t seen_in_step = 0;  ///< first
    bool is_refused = false;        ///< by the device
    std::unique_ptr<RecordedWork> work;
    LossSum loss;
  };
  bool is_capturable(const MicroBatch& batch, MicroBatchPlace place, double grad_scale) const;
  Inputs& copy_inputs(const MicroBatch& batch, double grad_scale);
  bool capture(Graph& graph, const Inputs& inputs, MicroBatchPlace place, double grad_scale);
  void apply_replay(MicroBatchPlace place);
  bool hold_memory() const;
  std::vector<bool> gathered_units() const;
  void roll_back(const std::vector<bool>& gathered);

  Engine& engine_;
  std::map<Key, Graph> graphs_;
  std::map<std::tuple<std::int64_t, std::int64_t, bool>, Inputs> inputs_;
  std::int64_t step_ = 0;
  bool evaluations_own_cache_ = false;  ///< what was given up has become that of evaluations
  RecordingCounts counts_;
};

}  // namespace fsdp
