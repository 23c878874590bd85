#pragma once
// What an engine keeps of a unit, and of a micro-batch under way.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/engine/fsdp/engine.hpp"

namespace fsdp {

/// One micro-batch under way.
struct Engine::Run {
  const MicroBatch& batch;
  MicroBatchPlace place;
  GradScale grad_scale;
  bool training = false;
  at::Tensor x_ND;                 ///< activation between layers
  at::Tensor grad_ND;              ///< gradient between layers
  std::vector<at::Tensor> inputs;  ///< of checkpointed layers
  std::vector<std::unique_ptr<LayerState>> states;
  LossSum loss;
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
    std::vector<std::size_t> places;
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

}  // namespace fsdp
